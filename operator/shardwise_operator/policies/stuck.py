"""Pods that are stuck: SIGKILL does not end their trainer, for the node's kernel holds it, for a device or a disk.

The agent of such a pod says so through host 0, and can do no more: a container does not end before all its processes
have. What follows is decided in `losses.py`, as for a lost node. The pod object may stay for as long as its node does.
"""

from collections.abc import Mapping

from shardwise_operator.observed import Observed
from shardwise_operator.pod import Pod

GRACE_SECONDS = 10  # of a stuck pod: it has nothing to save
# After the time at which a pod was to be gone, its kubelet has killed what can be killed.
_HELD_AFTER_SECONDS = 30.0


def stuck(seen: Observed, now: float) -> Mapping[str, str]:
    """By address, in words, what a pod cannot end.

    By address, since an answer of host 0 may still be about the pod before.
    """
    if not (seen.poll and seen.poll.status and seen.poll.fresh(now)):
        return {}
    return {str(each["address"]): str(each["words"]) for each in seen.poll.status.get("stuck", ())}


def held(pod: Pod, now: float) -> bool:
    """Whether a pod that was to be gone is there: what is left of it has been killed, and never runs again."""
    return pod.deleting_at is not None and now > pod.deleting_at + _HELD_AFTER_SECONDS
