"""A group of pods that is over: tell its queue that no replacements follow, so that it frees their quota.

Kueue has a group for each round. It keeps the quota, and the ended pods, of a group that has not succeeded as a whole,
for pods that may replace them. A mark on one pod of the group ends that.
"""

from collections.abc import Iterator

from shardwise_operator.decide.plan import Patch, Plan, never
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import UNFOLLOWED, Pod
from shardwise_operator.observe.state import FINISHED, Phase
from shardwise_operator.runtime.kinds import PODS

wake = never


def decide(seen: Observed, _now: float) -> Plan:
    """Mark the groups that are over."""
    return Plan(state=seen.state, steps=tuple(marks(seen)))


def marks(seen: Observed) -> Iterator[Patch]:
    """Yield one mark for each group that is over and has none."""
    at_rest = seen.state.phase in (*FINISHED, Phase.SUSPENDED)
    over: dict[str, list[Pod]] = {}
    for pod in seen.pods:
        if pod.group and (at_rest or pod.round != seen.state.round):
            over.setdefault(pod.group, []).append(pod)
    for pods in over.values():
        if not any(pod.unfollowed for pod in pods):
            yield Patch(PODS, pods[0].name, pods[0].uid, {"metadata": {"annotations": {UNFOLLOWED: "false"}}})
