"""Host 0's share in the job's NetworkPolicy.

The garbage collector takes the objects of a deleted job at once, while its pods have their grace period to save, and
JAX's connections have no authentication. What has another owner is left until that is gone too: host 0, the last to go.
"""

from collections.abc import Iterator

from shardwise_operator.observed import LEADER, Observed
from shardwise_operator.plan import Patch, Step
from shardwise_operator.render.names import owner, policy_name
from shardwise_operator.runtime.kinds import NETWORK_POLICIES, PODS


def steps(seen: Observed) -> Iterator[Step]:
    """Make the policy last as long as host 0."""
    leader = seen.current(LEADER)
    if leader is None or leader.address is None or leader.ended:
        return
    if seen.guard is not None and leader.uid not in seen.guard.owners:
        pod = {"apiVersion": PODS.api_version, "kind": PODS.kind, "name": leader.name, "uid": leader.uid}
        owners = {"metadata": {"ownerReferences": [owner(seen.name, seen.uid), pod]}}
        yield Patch(NETWORK_POLICIES, policy_name(seen.name), seen.guard.uid, owners)
