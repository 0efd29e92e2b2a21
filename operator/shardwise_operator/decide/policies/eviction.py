"""A queue that takes its quota back, or a Workload that is gone: the job saves and stops, then waits to be admitted.

It stops as for a suspend, so no step is lost. Until all pods have ended, the quota stays reserved for it; `queueing.py`
then gives it back. What comes after is another round, which starts from the checkpoint.
"""

from dataclasses import replace

from shardwise.protocol.pods import PLAN
from shardwise_operator.decide.endings import ASK_AGAIN_SECONDS, all_ended, announced, left_behind, stop_steps
from shardwise_operator.decide.plan import Event, Plan, never
from shardwise_operator.decide.policies import new_round, queueing
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Phase
from shardwise_operator.reasons import EVICTED

wake = never  # its own plan says when to ask again


def decide(seen: Observed, now: float) -> Plan | None:
    """Take the next step towards the queue, if the job has pods and no admission."""
    if seen.suspend or seen.state.phase == Phase.SUSPENDED or not _evicted(seen) or not _has_pods(seen):
        return None
    message = _why(seen, now)
    if all_ended(seen, now):
        left = left_behind(seen, now)
        return new_round.queued_again(seen, EVICTED, f"{message}; {left}" if left else message, now)
    state, events = seen.state, tuple[Event, ...]()
    if state.phase != Phase.SUSPENDING:
        events = (Event(EVICTED, f"{message}: {announced(seen)}, then waits in its queue again"),)
        state = replace(state, phase=Phase.SUSPENDING, not_before=None, stop_asked_at=now)
    assert state.stop_asked_at is not None
    steps = stop_steps(seen, state.stop_asked_at, now)
    state = replace(state, reason=EVICTED, message=message)
    return Plan(state=state, steps=steps, events=events, requeue_after_seconds=ASK_AGAIN_SECONDS)


def _evicted(seen: Observed) -> bool:
    """Return whether the job has a queue that does not admit it (any more)."""
    if seen.queueing is None or not seen.queueing.queue:
        return False
    workload = seen.queueing.workload
    return workload is None or not workload.admitted


def _has_pods(seen: Observed) -> bool:
    if seen.state.round is None or not seen.state.cleared:
        return False
    return bool(seen.state.pods) or any(pod.key != PLAN for pod in seen.round_pods())


def _why(seen: Observed, now: float) -> str:
    assert seen.queueing is not None
    return "its Workload is gone" if seen.queueing.workload is None else queueing.why_queued(seen, now)[1]
