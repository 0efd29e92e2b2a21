"""`spec.deadline`: a round that takes longer is asked to save, waited for within the grace period, and then has failed.

It counts from when all pods first ran: a job may wait for its hosts for longer than it trains. The launcher keeps the
same deadline by itself, from its first attempt; this one also ends a round that has lost its hosts since.
"""

from dataclasses import replace

from shardwise_operator.decide.endings import ASK_AGAIN_SECONDS, all_ended, failed, left_behind, stop_steps
from shardwise_operator.decide.plan import Plan
from shardwise_operator.observe.observed import Observed
from shardwise_operator.reasons import DEADLINE


def decide(seen: Observed, now: float) -> Plan | None:
    """Take the next step of ending a round that has passed its deadline."""
    if not passed(seen, now):
        return None
    since = seen.state.stop_asked_at
    if all_ended(seen, now):
        message = f"not complete {seen.deadline_seconds:g} s after its pods first ran"
        left = left_behind(seen, now)
        return failed(seen, DEADLINE, f"{message}; {left}" if left else message, now)
    state = seen.state if since is not None else replace(seen.state, reason=DEADLINE, stop_asked_at=now)
    steps = stop_steps(seen, now if since is None else since, now)
    return Plan(state=state, steps=steps, requeue_after_seconds=ASK_AGAIN_SECONDS)


def passed(seen: Observed, now: float) -> bool:
    """Return whether the round is past its deadline."""
    return wake(seen, now) == 0.0


def wake(seen: Observed, now: float) -> float | None:
    """Return the time until the deadline; None without one, and while it does not count yet."""
    if seen.deadline_seconds is None or seen.state.ran_at is None:
        return None
    return max(0.0, seen.state.ran_at + seen.deadline_seconds - now)
