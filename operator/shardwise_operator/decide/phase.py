"""Report how far a round is: its phase and its conditions, from its pods and from the status of host 0.

Nothing is guessed: if host 0 has not answered for a while, the condition Ready is Unknown.
"""

from dataclasses import replace

from shardwise.protocol.run_status import RunSummary
from shardwise_operator import reasons
from shardwise_operator.decide import slices
from shardwise_operator.decide.pending import pending_reason
from shardwise_operator.decide.plan import Plan, never
from shardwise_operator.decide.policies import preflight, queueing
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Phase, State
from shardwise_operator.reasons import FALSE, TRUE, UNKNOWN, ConditionStatus

_HAS_RUN = (Phase.RUNNING, Phase.RECOVERING)
_STEPPING = ("running", "stalled", "stopping", "done")

wake = never


def decide(seen: Observed, now: float) -> Plan:
    """Write the phase and the conditions that hold now into the state."""
    return Plan(state=with_phase(seen, now))


def with_phase(seen: Observed, now: float) -> State:
    """Return the state with the phase and the conditions that hold now."""
    if not seen.state.cleared:
        return preflight.with_phase(replace(seen, state=queueing.with_admission(seen, seen.state)), now)
    pods = seen.current_pods()
    if seen.queued and not pods:
        return queueing.with_phase(seen, now)
    all_run = slices.all_run(seen)
    reason, message = (reasons.PLACED, "") if all_run else pending_reason(seen, now)
    message = queueing.without_held(message)  # that of a backoff is the last pass's own
    placed: ConditionStatus = TRUE if reason == reasons.PLACED else FALSE
    state = queueing.with_admission(seen, seen.state)
    state = state.with_condition(reasons.SCHEDULED, placed, reason, message, now=now)
    if not all_run:
        phase = Phase.RECOVERING if state.phase in _HAS_RUN else Phase.PENDING
        message = queueing.with_held(seen, message)
        return _with_stall(state, reason, "", stalled=False, now=now).at(phase, FALSE, reason, message, now=now)
    state = replace(state, ran_at=state.ran_at or max((pod.started_at for pod in pods if pod.started_at), default=now))
    status = seen.fresh_status(now)
    if status is None:
        # A run that host 0 does not report goes on all the same: its phase stays, and only Ready is in doubt.
        phase = state.phase if state.phase in _HAS_RUN else Phase.STARTING
        message = seen.poll.error if seen.poll else ""
        return state.at(phase, UNKNOWN, reasons.UNREACHABLE, message, now=now)
    return _reported(state, status, now)


def _reported(state: State, status: RunSummary, now: float) -> State:
    """Return the state with the phase that host 0 reports."""
    reported, message = status.phase, status.reason
    phase = Phase.RECOVERING if state.phase in _HAS_RUN or reported == "recovering" else Phase.STARTING
    if reported in _STEPPING:
        phase = Phase.RUNNING
    reason = reported[0].upper() + reported[1:]
    stalled = reported == "stalled"
    state = _with_stall(state, reason, message if stalled else "", stalled=stalled, now=now)
    ready: ConditionStatus = TRUE if reported == "running" else FALSE
    return replace(state, not_before=None).at(phase, ready, reason, message, now=now)


def _with_stall(state: State, reason: str, message: str, *, stalled: bool, now: float) -> State:
    """Return the state with the condition Stalled; a run that never was has none."""
    if not stalled and not state.condition(reasons.STALLED):
        return state
    return state.with_condition(reasons.STALLED, TRUE if stalled else FALSE, reason, message, now=now)
