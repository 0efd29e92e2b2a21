"""How a job is brought to an end: asked to save and waited for, or said to have failed.

Used by the policies that end a job: outcome, suspension, deadline, losses.
"""

from dataclasses import replace

from shardwise_operator.observed import LEADER, Observed
from shardwise_operator.plan import AskStop, Delete, Event, Plan, Step
from shardwise_operator.policies.stuck import held
from shardwise_operator.runtime.kinds import PODS
from shardwise_operator.state import Phase
from shardwise_operator.words import FAILED, TRUE

ASK_AGAIN_SECONDS = 2.0


def failed(seen: Observed, reason: str, message: str, now: float) -> Plan:
    """The job has failed."""
    state = replace(seen.state, phase=Phase.FAILED, reason=reason, message=message, completed_at=now, not_before=None)
    state = state.saying(FAILED, TRUE, reason, message, now=now).at_rest(reason, now=now)
    return Plan(state=state, events=(Event("Warning", reason, message),))


def stopping(seen: Observed, since: float, now: float) -> tuple[Step, ...]:
    """What ends the pods that are alive, a save first.

    Host 0 is asked for a save as long as its pod runs, until the grace period after `since` is over; then, or where
    there is nobody to ask, the pods are deleted.
    """
    alive = [pod for pod in seen.pods if not pod.ended and pod.deleting_at is None]
    leader = seen.current(LEADER)
    if leader and leader.running and leader.address and now < since + seen.grace_seconds:
        idle = [pod for pod in alive if not pod.running]
        return (AskStop(leader.address), *(Delete(PODS, pod.name, pod.uid) for pod in idle))
    return tuple(Delete(PODS, pod.name, pod.uid) for pod in alive)


def all_ended(seen: Observed, now: float) -> bool:
    """Whether no pod of the job can still do anything."""
    return all(pod.ended or seen.on_a_lost_node(pod) or held(pod, now) for pod in seen.pods)


def left_behind(seen: Observed, now: float) -> str:
    """In words, the pods that are still there though nothing is waited for; "" where there is none."""
    left = [f"{pod.name} on {pod.node}" for pod in seen.pods if not pod.ended and held(pod, now)]
    return f"still there, for their nodes cannot end them: {', '.join(left)}" if left else ""
