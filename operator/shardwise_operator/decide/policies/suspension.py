"""`spec.suspend`: ask for a save and wait for it within a bound; then delete the pods, and the job is Suspended.

A stop cannot be taken back once it was asked for: a job that is resumed meanwhile is suspended first.
"""

from dataclasses import replace

from shardwise_operator.decide.endings import ASK_AGAIN_SECONDS, all_ended, announced, left_behind, stop_steps
from shardwise_operator.decide.plan import Delete, Event, Plan, never
from shardwise_operator.decide.policies import queueing
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Growth, Phase
from shardwise_operator.reasons import FALSE, SAVING, SUSPEND_ASKED, SUSPENDED, TRUE
from shardwise_operator.runtime.kinds import PODS

wake = never  # its own plan says when to ask again


def decide(seen: Observed, now: float) -> Plan | None:
    """Take the next step towards Suspended, if the job is to be suspended."""
    phase = seen.state.phase
    if phase == Phase.SUSPENDED:
        late = (Delete(PODS, pod.name, pod.uid) for pod in seen.pods if pod.alive)  # made after a pass that failed
        return Plan(state=seen.state, steps=(*queueing.left(seen), *late)) if seen.suspend else None
    if not seen.suspend and phase != Phase.SUSPENDING:
        return None
    if all_ended(seen, now):
        return _suspended(seen, now)
    state, events = seen.state, tuple[Event, ...]()
    if phase != Phase.SUSPENDING:
        events = (Event(SUSPEND_ASKED, f"{announced(seen)}, then its pods go"),)
        state = replace(state, phase=Phase.SUSPENDING, reason=SAVING, message="", not_before=None, stop_asked_at=now)
        state = state.with_condition(SUSPENDED, FALSE, SAVING, "", now=now)
    assert state.stop_asked_at is not None
    steps = stop_steps(seen, state.stop_asked_at, now)
    return Plan(state=state, steps=steps, events=events, requeue_after_seconds=ASK_AGAIN_SECONDS)


def _suspended(seen: Observed, now: float) -> Plan:
    left = left_behind(seen, now)
    state = replace(seen.state, phase=Phase.SUSPENDED, reason=SUSPEND_ASKED, message=left, pods={}, stop_asked_at=None)
    state = replace(state, slices=None, growth=Growth())  # it is resumed with all of them, and waits for these first
    state = state.with_condition(SUSPENDED, TRUE, SUSPEND_ASKED, left, now=now).at_rest(SUSPENDED, now=now)
    steps = tuple(Delete(PODS, pod.name, pod.uid) for pod in seen.pods if pod.deleting_at is None)
    return Plan(state=state, steps=steps, events=(Event(SUSPENDED, "spec.suspend is true"),))
