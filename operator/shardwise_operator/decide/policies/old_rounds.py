"""Delete what the pods of earlier rounds were made of, once none of those pods is left.

A job that waits for its hosts may begin a round each half hour, for weeks. A pod mounts its round's ConfigMap, so that
one stays as long as the pod does, even on a node that is silent.
"""

from collections.abc import Iterator

from shardwise_operator.decide.plan import Delete, Plan, never
from shardwise_operator.observe.observed import Observed
from shardwise_operator.render.names import round_of
from shardwise_operator.runtime.kinds import CONFIG_MAPS, GANGS

wake = never


def decide(seen: Observed, _now: float) -> Plan:
    """Delete the snapshots and gangs of earlier rounds without a pod."""
    return Plan(state=seen.state, steps=tuple(_deletions(seen)))


def _deletions(seen: Observed) -> Iterator[Delete]:
    current, used = seen.state.round, {pod.round for pod in seen.pods}
    assert current is not None
    for (kind, name), uid in seen.children.items():
        number = round_of(seen.name, name) if kind in (CONFIG_MAPS, GANGS) else None
        if number is not None and number < current and number not in used:
            yield Delete(kind, name, uid, may_stay=True)
