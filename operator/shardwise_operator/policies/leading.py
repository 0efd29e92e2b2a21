"""Host 0's address behind the name by which the other hosts find it."""

from collections.abc import Iterator
from typing import Any

from shardwise_operator.observed import LEADER, Observed
from shardwise_operator.plan import Apply, Create, Step
from shardwise_operator.render.children import endpoint_slice
from shardwise_operator.runtime.kinds import ENDPOINT_SLICES


def steps(seen: Observed) -> Iterator[Step]:
    """Make the name say where host 0 is now."""
    leader = seen.current(LEADER)
    if leader is None or leader.address is None or leader.ended:
        return
    manifest: dict[str, Any] = endpoint_slice(seen, leader.address)
    if seen.endpoint is None:
        yield Create(ENDPOINT_SLICES, manifest)
    elif seen.endpoint.address != leader.address:
        manifest["metadata"]["uid"] = seen.endpoint.uid
        yield Apply(ENDPOINT_SLICES, manifest)
