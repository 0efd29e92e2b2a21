"""Pods that are stuck: they can start no trainer, and another pod on their node could not either.

SIGKILL does not end their last one, because the node's kernel holds it in a device or a disk, or their devices have
failed twice. The agent of such a pod reports it through host 0 and can do no more: a container does not end before all
its processes have. `losses.py` treats it as a lost node. The pod object may stay for as long as its node does.
"""

from collections.abc import Mapping

from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import Pod

GRACE_SECONDS = 10  # of a stuck pod, which has nothing to save
# By then the kubelet has killed what can be killed of a pod whose grace period is over.
_PAST_GRACE_SECONDS = 30.0


def stuck(seen: Observed, now: float) -> Mapping[str, str]:
    """Map the address of each stuck pod to the message about what it cannot end.

    It goes by addresses because an answer of host 0 may still be about the pod before.
    """
    status = seen.fresh_status(now)
    return {each.address: each.message for each in status.stuck} if status else {}


def past_grace(pod: Pod, now: float) -> bool:
    """Return whether a deleted pod has outlived its grace period: what is left of it was killed and runs no more."""
    over_at = past_grace_at(pod)
    return over_at is not None and now >= over_at


def past_grace_at(pod: Pod) -> float | None:
    """Return when a deleted pod will have outlived its grace period; None of one that is not being deleted."""
    return None if pod.deleting_at is None else pod.deleting_at + _PAST_GRACE_SECONDS
