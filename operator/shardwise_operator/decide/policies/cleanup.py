"""Delete pods that no longer count: released ones, those of earlier rounds, and lost ones before the last.

The pod before the current one is kept once it has ended, with its log; so are the plan's. An ended pod in which other
containers go on still holds its node, so it is deleted. A pod that does not end is deleted by force only if its node is
gone: a node that is silent may still run it.
"""

from collections.abc import Iterator

from shardwise.protocol.pods import PLAN
from shardwise_operator.decide.plan import Delete, Plan, soonest
from shardwise_operator.decide.policies import placeholders
from shardwise_operator.decide.stuck import GRACE_SECONDS, stuck
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import Pod
from shardwise_operator.runtime.kinds import PODS

_MAX_LOOK_AGAIN_SECONDS = 300.0


def decide(seen: Observed, now: float) -> Plan:
    """Delete the pods that no longer count."""
    return Plan(state=seen.state, steps=tuple(_deletions(seen, now)))


def wake(seen: Observed, now: float) -> float | None:
    """Return when to look for the next pod that is being deleted."""
    return soonest(_look_again_seconds(pod.deleting_at, now) for pod in seen.pods if pod.deleting_at is not None)


def _deletions(seen: Observed, now: float) -> Iterator[Delete]:
    held = seen.placeholders() if placeholders.wanted(seen, now) else ()
    current, stuck_addresses = {pod.uid for pod in (*seen.current_pods(), *held)}, stuck(seen, now)
    for pod in seen.pods:
        if pod.deleting_at is not None:
            if pod.node in seen.gone_nodes and now > pod.deleting_at:
                yield Delete(PODS, pod.name, pod.uid, grace_seconds=0)
        elif pod.uid not in current and (pod.lingers or not _kept(seen, pod)):
            grace_seconds = GRACE_SECONDS if pod.address in stuck_addresses else None
            yield Delete(PODS, pod.name, pod.uid, grace_seconds=grace_seconds)


def _kept(seen: Observed, pod: Pod) -> bool:
    if pod.key == PLAN:
        return (pod.ended or seen.state.planning) and pod.round == seen.state.round
    last = pod.attempt == seen.state.attempts.get(pod.key, 0) - 1
    return pod.ended and last and pod.round == seen.state.round


def _look_again_seconds(deleting_at: float, now: float) -> float:
    """Return when to look for a deleted pod: that of a dead node stays for long, so twice as late each time."""
    if now < deleting_at:
        return deleting_at - now + 1.0
    return min(_MAX_LOOK_AGAIN_SECONDS, max(1.0, now - deleting_at))
