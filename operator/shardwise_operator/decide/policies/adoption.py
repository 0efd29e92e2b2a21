"""Take over a first round that has objects and is not in the status: who made them ended before writing it.

Their snapshot is the first object of a round. What it holds stands from then on, whatever has become of the job's spec.
"""

from shardwise_operator.decide.plan import Plan, never
from shardwise_operator.decide.policies import new_round
from shardwise_operator.observe.observed import Observed

wake = never


def decide(seen: Observed, now: float) -> Plan | None:
    """Write that the round has begun; its pods, too, are those that there are."""
    if seen.state.round is not None or seen.snapshot is None:
        return None
    return Plan(state=new_round.first(seen, now))
