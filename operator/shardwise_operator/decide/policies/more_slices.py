"""Take in slices that are back: the run saves and stops, and its next round has them (`recovery.minSlices`).

Their places are held by placeholders meanwhile (`placeholders.py`). A round that has just begun goes on for as long as
a lost host is waited for, so that slices that come and go cost no more than waiting for them would.
"""

from dataclasses import replace

from shardwise_operator.decide.endings import ASK_AGAIN_SECONDS
from shardwise_operator.decide.plan import Plan, RequestStop
from shardwise_operator.decide.slices import all_run, elastic, next_slices, num_slices, words
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Phase

# Nodes that were bought together do not come at once, and each round costs a save and a start.
_SETTLED_SECONDS = 30.0
# A host 0 that has not taken the request within its grace period is asked less often.
_LATE_SECONDS = 30.0


def decide(seen: Observed, now: float) -> Plan:
    """Ask for a save and a stop, until the run has ended; then `outcome.py` starts the next round.

    The status says so a pass before: an operator that finds the run ended must know why.
    """
    state = seen.state
    if state.growth.asked_at is not None:
        steps = (RequestStop(seen.leader.address),) if seen.leader and seen.leader.address else ()
        return Plan(state=state, steps=steps)
    if wake(seen, now) != 0.0:
        return Plan(state=state)
    return Plan(state=replace(state, growth=replace(state.growth, asked_at=now)))


def wake(seen: Observed, now: float) -> float | None:
    """Return in how many seconds more slices are taken in, or host 0 is asked again; None while there are no more."""
    state = seen.state
    if state.growth.asked_at is not None:
        return ASK_AGAIN_SECONDS if now < state.growth.asked_at + seen.grace_seconds else _LATE_SECONDS
    if not elastic(seen) or state.started_at is None or state.phase != Phase.RUNNING or not all_run(seen):
        return None
    if next_slices(seen) <= num_slices(seen):
        return None
    settled = max((pod.started_at for pod in seen.placeholders() if pod.started_at), default=now) + _SETTLED_SECONDS
    recovery = seen.round_snapshot.job.spec.recovery
    return max(0.0, max(settled, state.started_at + recovery.replace_within.seconds) - now)


def message(seen: Observed) -> str:
    """Return for people what is about to happen."""
    return f"the run saves, and goes on with {words(next_slices(seen), seen)}"
