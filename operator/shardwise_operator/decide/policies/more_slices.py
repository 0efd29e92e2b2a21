"""Take in slices that are back: the run saves and stops, and its next round has them (`recovery.minSlices`).

Their places are held by placeholders meanwhile (`placeholders.py`). A round that has just begun goes on for as long as
a lost host is waited for, so that slices that come and go cost no more than waiting for them would.
"""

from dataclasses import replace

from shardwise_operator.decide.endings import ASK_AGAIN_SECONDS
from shardwise_operator.decide.plan import Event, Plan, RequestStop
from shardwise_operator.decide.policies import start_timeout
from shardwise_operator.decide.slices import elastic, next_slices, num_slices, words
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Phase
from shardwise_operator.reasons import SLICES_BACK

# Nodes that were bought together do not come at once, and each round costs a save and a start.
_SETTLED_SECONDS = 30.0


def decide(seen: Observed, now: float) -> Plan | None:
    """Ask for a save and a stop, until the run has ended; then `outcome.py` starts the next round.

    The status says so first: an operator that finds the run ended must know why.
    """
    state = seen.state
    asked = state.reason == SLICES_BACK and state.stop_asked_at is not None
    if not (asked or wake(seen, now) == 0.0) or start_timeout.running(seen) < len(seen.hosts):
        return None
    if seen.leader is None or seen.leader.address is None:
        return None
    if asked:
        return Plan(state=state, steps=(RequestStop(seen.leader.address),), requeue_after_seconds=ASK_AGAIN_SECONDS)
    message = f"the run saves, and goes on with {words(next_slices(seen), seen)}"
    state = replace(state, reason=SLICES_BACK, message=message, stop_asked_at=now)
    return Plan(state=state, events=(Event(SLICES_BACK, message),), requeue_after_seconds=ASK_AGAIN_SECONDS)


def wake(seen: Observed, now: float) -> float | None:
    """Return in how many seconds more slices are taken in; None while there are none."""
    state = seen.state
    if not elastic(seen) or state.started_at is None or state.phase != Phase.RUNNING:
        return None
    if start_timeout.running(seen) < len(seen.hosts) or next_slices(seen) <= num_slices(seen):
        return None
    settled = max((pod.started_at for pod in seen.placeholders() if pod.started_at), default=now) + _SETTLED_SECONDS
    recovery = seen.round_snapshot.job.spec.recovery
    return max(0.0, max(settled, state.started_at + recovery.replace_within.seconds) - now)
