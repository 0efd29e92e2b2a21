"""How a job is brought to an end: host 0 is asked to save and waited for, or the job is marked as failed."""

from dataclasses import replace

from shardwise_operator.decide.naming import counted
from shardwise_operator.decide.plan import Delete, Plan, RequestStop, Step
from shardwise_operator.decide.stuck import past_grace
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.state import Phase
from shardwise_operator.reasons import FAILED, TRUE
from shardwise_operator.runtime.kinds import PODS

ASK_AGAIN_SECONDS = 2.0


def failed(seen: Observed, reason: str, message: str, now: float) -> Plan:
    """Return the plan that marks the job as Failed."""
    state = replace(seen.state, phase=Phase.FAILED, completed_at=now, not_before=None)
    state = state.with_condition(FAILED, TRUE, reason, message, now=now).at_rest(reason, now=now)
    return Plan.warning(state, reason, message)


def stop_steps(seen: Observed, since: float, now: float) -> tuple[Step, ...]:
    """Return the steps that end all pods, a save first.

    As long as host 0's pod runs, host 0 is asked to save, until the grace period after `since` is over. Then, or if
    there is no host 0 to ask, the pods are deleted.
    """
    alive = [pod for pod in seen.pods if pod.alive]
    if seen.leader and seen.leader.address and now < since + seen.grace_seconds:
        # Pods that do not run have nothing to save; those that do must stay, or the save would lose their shards.
        idle = [pod for pod in alive if not pod.running]
        return (RequestStop(seen.leader.address), *(Delete(PODS, pod.name, pod.uid) for pod in idle))
    return tuple(Delete(PODS, pod.name, pod.uid) for pod in alive)


def announced(seen: Observed) -> str:
    """Return for people how a stop that is asked for begins: only a host 0 that runs can be asked to save."""
    return "the job saves" if seen.leader else "nothing is saved, as host 0 does not run"


def all_ended(seen: Observed, now: float) -> bool:
    """Return whether no pod of the job can still do anything."""
    return all(is_over(seen, pod, now) for pod in seen.pods)


def is_over(seen: Observed, pod: Pod, now: float) -> bool:
    """Return whether a pod can certainly do nothing more."""
    return pod.ended or seen.on_a_lost_node(pod) or past_grace(pod, now)


def left_behind(seen: Observed, now: float) -> str:
    """Return a message that names the pods that still exist though nothing waits for them; "" without any."""
    left = [f"{pod.name} on {pod.node}" for pod in seen.pods if not pod.ended and past_grace(pod, now)]
    return f"still there, for their nodes cannot end them: {counted(left)}" if left else ""
