"""How a round that is under way stands: its phase and its conditions, from its pods and from what host 0 says.

Nothing is guessed: where host 0 has not answered for a while, Ready is Unknown.
"""

from dataclasses import replace

from shardwise_operator.observed import Observed
from shardwise_operator.policies import preflight
from shardwise_operator.policies.pending import why
from shardwise_operator.state import Phase, State
from shardwise_operator.words import FALSE, NO_WORD, PLACED, READY, SCHEDULED, STALLED, TRUE, UNKNOWN

_HAS_RUN = (Phase.RUNNING, Phase.RECOVERING)
_STEPPING = ("running", "stalled", "stopping", "done")


def stand(seen: Observed, now: float) -> State:
    """The state, with the phase and the conditions that hold now."""
    if not seen.state.cleared:
        return preflight.stand(seen, now)
    pods = seen.current_pods()
    reason, words = why(seen, now)
    state = seen.state.saying(SCHEDULED, TRUE if reason == PLACED else FALSE, reason, words, now=now)
    if len(pods) < len(seen.hosts) or any(not pod.running for pod in pods):
        phase = Phase.RECOVERING if state.phase in _HAS_RUN else Phase.PENDING
        return _ready(_in(state, phase, reason, words), FALSE, reason, words, now)
    state = replace(state, ran_at=state.ran_at or max((pod.started_at for pod in pods if pod.started_at), default=now))
    poll = seen.poll
    if poll is None or poll.status is None or not poll.fresh(now):
        phase = state.phase if state.phase in _HAS_RUN else Phase.STARTING
        words = poll.error if poll else ""
        return _ready(_in(state, phase, NO_WORD, words), UNKNOWN, NO_WORD, words, now)
    return _as_told(state, poll.status, now)


def _as_told(state: State, status: dict[str, object], now: float) -> State:
    told, words = str(status["phase"]), str(status.get("reason", ""))
    phase = Phase.RECOVERING if state.phase in _HAS_RUN or told == "recovering" else Phase.STARTING
    if told in _STEPPING:
        phase = Phase.RUNNING
    reason = told[0].upper() + told[1:]
    stalled = told == "stalled"
    if stalled or state.condition(STALLED):
        state = state.saying(STALLED, TRUE if stalled else FALSE, reason, words if stalled else "", now=now)
    state = replace(_in(state, phase, reason, words), not_before=None)
    return _ready(state, TRUE if told == "running" else FALSE, reason, words, now)


def _in(state: State, phase: Phase, reason: str, words: str) -> State:
    return replace(state, phase=phase, reason=reason, message=words)


def _ready(state: State, status: str, reason: str, words: str, now: float) -> State:
    return state.saying(READY, status, reason, words, now=now)
