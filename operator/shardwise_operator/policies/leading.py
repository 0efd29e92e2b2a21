"""Host 0's address behind the name by which the other hosts find it, and its share in the job's NetworkPolicy.

The garbage collector takes the objects of a deleted job at once, while its pods have their grace period to save, and
JAX's connections have no authentication. What has another owner is left until that is gone too: host 0, the last to go.
"""

from collections.abc import Iterator
from typing import Any

from shardwise_operator.observed import LEADER, Observed
from shardwise_operator.plan import Apply, Create, Patch, Step
from shardwise_operator.render.children import endpoint_slice
from shardwise_operator.render.names import owner, service_name
from shardwise_operator.runtime.kinds import ENDPOINT_SLICES, NETWORK_POLICIES, PODS


def steps(seen: Observed) -> Iterator[Step]:
    """Make the name say where host 0 is now, and the policy last as long as it."""
    leader = seen.current(LEADER)
    if leader is None or leader.address is None or leader.ended:
        return
    manifest: dict[str, Any] = endpoint_slice(seen, leader.address)
    if seen.endpoint is None:
        yield Create(ENDPOINT_SLICES, manifest)
    elif seen.endpoint.address != leader.address:
        manifest["metadata"]["uid"] = seen.endpoint.uid
        yield Apply(ENDPOINT_SLICES, manifest)
    if seen.guard is not None and leader.uid not in seen.guard.owners:
        pod = {"apiVersion": PODS.api_version, "kind": PODS.kind, "name": leader.name, "uid": leader.uid}
        owners = {"metadata": {"ownerReferences": [owner(seen.name, seen.uid), pod]}}
        yield Patch(NETWORK_POLICIES, service_name(seen.name), seen.guard.uid, owners)
