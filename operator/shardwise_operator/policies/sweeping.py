"""Pods that no longer count: those that were given back, of earlier rounds, and lost ones before the last.

The pod before the current one is kept when it has ended, with its log; so are the plan's. One in which other containers
go on holds its node, so it goes. One that is stuck is taken
away by force only when its node is no more: a node that is silent may still run it.
"""

from collections.abc import Iterator

from shardwise.job.pods import PLAN
from shardwise_operator.observed import Observed
from shardwise_operator.plan import Delete
from shardwise_operator.pod import Pod
from shardwise_operator.policies.stuck import GRACE_SECONDS, stuck
from shardwise_operator.runtime.kinds import PODS


def steps(seen: Observed, now: float) -> Iterator[Delete]:
    """The pods that go now."""
    current, held = {pod.uid for pod in seen.current_pods()}, stuck(seen, now)
    for pod in seen.pods:
        if pod.deleting_at is not None:
            if pod.node in seen.gone_nodes and now > pod.deleting_at:
                yield Delete(PODS, pod.name, pod.uid, grace_seconds=0)
        elif pod.uid not in current and (pod.lingers or not _kept(seen, pod)):
            yield Delete(PODS, pod.name, pod.uid, grace_seconds=GRACE_SECONDS if pod.address in held else None)


def _kept(seen: Observed, pod: Pod) -> bool:
    if pod.key == PLAN:
        return (pod.ended or seen.state.planning) and pod.round == seen.state.round
    last = pod.attempt == seen.state.attempts.get(pod.key, 0) - 1
    return pod.ended and last and pod.round == seen.state.round
