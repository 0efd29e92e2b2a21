"""Make host 0's pod a second owner of the job's NetworkPolicy.

The garbage collector deletes the objects of a deleted job at once, while its pods have their grace period to save, and
JAX's connections have no authentication. An object with another owner stays until that is gone too: host 0 ends last.
"""

from shardwise_operator.decide.plan import Patch, Plan, never
from shardwise_operator.observe.hosts import LEADER
from shardwise_operator.observe.observed import Observed
from shardwise_operator.render.names import owner, policy_name
from shardwise_operator.runtime.kinds import NETWORK_POLICIES, PODS

wake = never


def decide(seen: Observed, _now: float) -> Plan | None:
    """Make the NetworkPolicy last as long as host 0."""
    leader = seen.current(LEADER)
    if leader is None or leader.address is None or leader.ended:
        return None
    if seen.guard is None or leader.uid in seen.guard.owners:
        return None
    owners = {"metadata": {"ownerReferences": [owner(seen), PODS.reference(leader.name, leader.uid)]}}
    return Plan(state=seen.state, steps=(Patch(NETWORK_POLICIES, policy_name(seen.name), seen.guard.uid, owners),))
