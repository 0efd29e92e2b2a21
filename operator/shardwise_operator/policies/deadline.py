"""`spec.deadline`: a round that takes longer is asked to save, waited for within the grace period, and has failed.

It counts from when all pods first ran: a job may wait for its hosts for longer than it trains. The launcher keeps the
same deadline by itself, from its first incarnation; this one also ends a round whose hosts were lost since.
"""

from dataclasses import replace

from shardwise_operator.observed import Observed
from shardwise_operator.plan import Plan
from shardwise_operator.policies.endings import ASK_AGAIN_SECONDS, all_ended, failed, left_behind, stopping
from shardwise_operator.words import DEADLINE


def decide(seen: Observed, now: float) -> Plan | None:
    """The next step of ending a round that has passed its deadline."""
    if not passed(seen, now):
        return None
    since = seen.state.stop_asked_at
    if all_ended(seen, now):
        words = f"not complete {seen.deadline_seconds:g} s after its pods first ran"
        left = left_behind(seen, now)
        return failed(seen, DEADLINE, f"{words}; {left}" if left else words, now)
    state = seen.state if since is not None else replace(seen.state, reason=DEADLINE, stop_asked_at=now)
    steps = stopping(seen, now if since is None else since, now)
    return Plan(state=state, steps=steps, again_seconds=ASK_AGAIN_SECONDS)


def passed(seen: Observed, now: float) -> bool:
    """Whether the round is past its deadline."""
    return remaining_seconds(seen, now) == 0.0


def remaining_seconds(seen: Observed, now: float) -> float | None:
    """The time until the deadline; None without one, and while it does not count yet."""
    if seen.deadline_seconds is None or seen.state.ran_at is None:
        return None
    return max(0.0, seen.state.ran_at + seen.deadline_seconds - now)
