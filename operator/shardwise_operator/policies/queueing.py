"""A group of pods that is over: its queue is told that nobody follows them, so that it frees what they held.

Kueue has a group for each round. It keeps the quota, and the ended pods, of one that has not succeeded as a whole, for
pods that may take their places; one pod that says so ends that.
"""

from collections.abc import Iterator

from shardwise_operator.observed import Observed
from shardwise_operator.plan import Patch
from shardwise_operator.pod import UNFOLLOWED, Pod
from shardwise_operator.runtime.kinds import PODS
from shardwise_operator.state import FINISHED, Phase


def steps(seen: Observed) -> Iterator[Patch]:
    """One mark for each group that is over and has none."""
    at_rest = seen.state.phase in (*FINISHED, Phase.SUSPENDED)
    over: dict[str, list[Pod]] = {}
    for pod in seen.pods:
        if pod.group and (at_rest or pod.round != seen.state.round):
            over.setdefault(pod.group, []).append(pod)
    for pods in over.values():
        if not any(pod.unfollowed for pod in pods):
            yield Patch(PODS, pods[0].name, pods[0].uid, {"metadata": {"annotations": {UNFOLLOWED: "false"}}})
