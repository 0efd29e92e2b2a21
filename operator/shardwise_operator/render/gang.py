"""A job's gang, a Workload of Kubernetes's own: those of its pods that the scheduler places all at once or not at all.

It is of one round, since it cannot change and the next round may have other hosts. Its pods name it. One that is lost
and replaced joins the others, which are placed already, and so waits for nobody.
"""

from typing import Any

from shardwise_operator.observe.hosts import is_first
from shardwise_operator.observe.observed import Observed
from shardwise_operator.render.names import gang_name, metadata
from shardwise_operator.runtime.kinds import GANGS, TRAINING_JOBS

_POD_GROUP = "hosts"


def gang_hosts(seen: Observed) -> tuple[str, ...]:
    """Return the hosts that look for a place: all, or of each slice the first, which the others follow.

    Pods behind a gate cannot be part of it: the gate opens when the first host has its node, for which it would wait.
    """
    if seen.placement_label is None:
        return seen.hosts
    return tuple(host for host in seen.hosts if is_first(host))


def gang_manifest(seen: Observed) -> dict[str, Any]:
    """Return the gang of a round."""
    assert seen.state.round is not None
    group = {"name": _POD_GROUP, "policy": {"gang": {"minCount": len(gang_hosts(seen))}}}
    of = {"apiGroup": TRAINING_JOBS.group, "kind": TRAINING_JOBS.kind, "name": seen.name}
    spec = {"controllerRef": of, "podGroups": [group]}
    return GANGS.manifest(metadata(seen, gang_name(seen.name, seen.state.round)), spec=spec)


def gang_reference(gang: str) -> dict[str, str]:
    """Return how a pod names its gang."""
    return {"name": gang, "podGroup": _POD_GROUP}
