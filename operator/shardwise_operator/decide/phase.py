"""Report how far a round is: its phase and its conditions, from its pods and from the status of host 0.

Nothing is guessed: if host 0 has not answered for a while, the condition Ready is Unknown.
"""

from dataclasses import replace

from shardwise.protocol.run_status import RunSummary
from shardwise_operator.decide.pending import pending_reason
from shardwise_operator.decide.plan import Plan
from shardwise_operator.decide.policies import preflight
from shardwise_operator.decide.policy import never
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Phase, State
from shardwise_operator.reasons import (
    FALSE,
    PLACED,
    READY,
    SCHEDULED,
    STALLED,
    TRUE,
    UNKNOWN,
    UNREACHABLE,
    ConditionStatus,
)

_HAS_RUN = (Phase.RUNNING, Phase.RECOVERING)
_STEPPING = ("running", "stalled", "stopping", "done")

wake = never


def decide(seen: Observed, now: float) -> Plan:
    """Write the phase and the conditions that hold now into the state."""
    return Plan(state=with_phase(seen, now))


def with_phase(seen: Observed, now: float) -> State:
    """Return the state with the phase and the conditions that hold now."""
    if not seen.state.cleared:
        return preflight.with_phase(seen, now)
    pods = seen.current_pods()
    reason, message = pending_reason(seen, now)
    state = seen.state.with_condition(SCHEDULED, TRUE if reason == PLACED else FALSE, reason, message, now=now)
    if len(pods) < len(seen.hosts) or any(not pod.running for pod in pods):
        phase = Phase.RECOVERING if state.phase in _HAS_RUN else Phase.PENDING
        return _ready(_in(state, phase, reason, message), FALSE, reason, message, now)
    state = replace(state, ran_at=state.ran_at or max((pod.started_at for pod in pods if pod.started_at), default=now))
    poll = seen.poll
    if poll is None or poll.status is None or not poll.fresh(now):
        # A run that host 0 does not report goes on all the same: its phase stays, and only Ready is in doubt.
        phase = state.phase if state.phase in _HAS_RUN else Phase.STARTING
        message = poll.error if poll else ""
        return _ready(_in(state, phase, UNREACHABLE, message), UNKNOWN, UNREACHABLE, message, now)
    return _reported(state, poll.status, now)


def _reported(state: State, status: RunSummary, now: float) -> State:
    """Return the state with the phase that host 0 reports."""
    reported, message = status.phase, status.reason
    phase = Phase.RECOVERING if state.phase in _HAS_RUN or reported == "recovering" else Phase.STARTING
    if reported in _STEPPING:
        phase = Phase.RUNNING
    reason = reported[0].upper() + reported[1:]
    stalled = reported == "stalled"
    if stalled or state.condition(STALLED):
        state = state.with_condition(STALLED, TRUE if stalled else FALSE, reason, message if stalled else "", now=now)
    state = replace(_in(state, phase, reason, message), not_before=None)
    return _ready(state, TRUE if reported == "running" else FALSE, reason, message, now)


def _in(state: State, phase: Phase, reason: str, message: str) -> State:
    return replace(state, phase=phase, reason=reason, message=message)


def _ready(state: State, status: ConditionStatus, reason: str, message: str, now: float) -> State:
    return state.with_condition(READY, status, reason, message, now=now)
