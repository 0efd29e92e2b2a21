"""Quota that is held and not used: an admitted job of which not all pods run in time gives hosts and quota back.

`recovery.startWithin` counts from the admission, since from then on nobody else can have the quota: also while no pod
has a node, for which `start_timeout.py` waits without a bound. Of a run that was released it counts from its next try,
and of one that has lost all its hosts from the last loss, or from the next try. A job that may go on with fewer slices
does so, and keeps the quota of all, as long as some are whole.

What comes after is another round. Its pods wait for a Workload of its own, which is made after the same wait as without
a queue, and stands behind the jobs that queue by then. No budget is charged but that of images. The old Workload is
deleted when the last pod has ended; until it is gone the job has no other policy.
"""

from dataclasses import replace

from shardwise_operator.decide.budgets import budget
from shardwise_operator.decide.endings import all_ended, failed
from shardwise_operator.decide.plan import Event, Plan
from shardwise_operator.decide.policies import cleanup, fewer_slices, queueing
from shardwise_operator.decide.policies.start_timeout import image_charged, retry_seconds, running
from shardwise_operator.decide.relocation import avoid_after_timeout
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Growth, Phase
from shardwise_operator.reasons import FALSE, NOT_STARTED, Lost


def decide(seen: Observed, now: float) -> Plan | None:
    """Take the next step of giving the quota back, if its time is up."""
    if wake(seen, now) != 0.0:
        return None
    if seen.state.reason != NOT_STARTED:
        return fewer_slices.without_the_missing(seen, _late(seen), now) or _give_back(seen, now)
    steps = tuple(queueing.left(seen) if all_ended(seen, now) else cleanup.decide(seen, now).steps)
    return Plan(state=seen.state, steps=steps, requeue_after_seconds=cleanup.wake(seen, now))


def wake(seen: Observed, now: float) -> float | None:
    """Return for how long the job may still hold quota without running; None if it holds none, or runs."""
    until = queueing.quota_until(seen)
    return None if until is None else max(0.0, until - now)


def _give_back(seen: Observed, now: float) -> Plan:
    """Start a round without pods: those of this one count no more."""
    assert seen.state.round is not None
    ran = _late(seen)
    state = image_charged(seen, now)
    if state is None:
        used_up = f"{ran}; the budget of {budget(seen, Lost.IMAGE)} for images is used up"
        return failed(seen, NOT_STARTED, used_up, now)
    wait, number = retry_seconds(seen), seen.state.round + 1
    state = replace(
        avoid_after_timeout(seen, state).renewed(seen.all_hosts),
        round=number,
        sealed_round=number,
        image="",
        started_at=now,
        ran_at=None,
        not_before=now + wait,
        slices=None,
        growth=Growth(),
    )
    message = f"{ran}; hosts and quota are given back, and the job queues again in {wait:.0f} s"
    state = state.at(Phase.PENDING, FALSE, NOT_STARTED, message, now=now)
    return Plan(state=state, events=(Event(NOT_STARTED, message),))


def _late(seen: Observed) -> str:
    return f"{running(seen)} of {len(seen.hosts)} pods ran within startWithin, counted from the admission"
