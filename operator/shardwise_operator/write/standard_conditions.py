"""The conditions that tools for any kind of object go by: Reconciling, Stalled and Ready, as kstatus reads them.

kstatus (pkg/kstatus/status of kubernetes-sigs/cli-utils, by which Flux and kpt go) takes the first of Reconciling and
Stalled that is True, in the order of the list: the object is in progress, or has failed. Else Ready decides. So
Reconciling comes first: a run that hangs is Stalled, and the operator brings it on all the same.
"""

from dataclasses import replace

from shardwise_operator.observe.state import Phase, State
from shardwise_operator.reasons import FALSE, READY, RECONCILING, STALLED, TRUE


def with_standard_conditions(state: State, now: float) -> State:
    """Return the state with the conditions that follow from its phase."""
    rests = state.finished or state.phase == Phase.SUSPENDED
    reason, message = state.reason or str(state.phase), state.message
    state = state.with_condition(RECONCILING, FALSE if rests else TRUE, reason, message, now=now)
    if state.phase == Phase.COMPLETE:
        state = state.with_condition(READY, TRUE, reason, message, now=now)
    if state.phase == Phase.FAILED:
        state = state.with_condition(STALLED, TRUE, reason, message, now=now)
    ordered = sorted(state.conditions, key=lambda condition: condition.type != RECONCILING)
    return replace(state, conditions=tuple(ordered))
