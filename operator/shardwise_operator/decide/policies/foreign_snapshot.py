"""Delete what has the place of a round's snapshot and is not this operator's; the next pass makes the right one.

Pods are made by the operator's rights, of what the snapshot holds. So it may only hold what the job and its class say,
and not what somebody who may write a ConfigMap, but no pod, has put into one.
"""

from shardwise_operator.decide.plan import Delete, Event, Plan, never
from shardwise_operator.observe.observed import Observed
from shardwise_operator.reasons import NAME_CONFLICT
from shardwise_operator.render.names import config_map_name
from shardwise_operator.runtime.kinds import CONFIG_MAPS

wake = never


def decide(seen: Observed, _now: float) -> Plan | None:
    """Delete it, and do nothing else meanwhile."""
    if not seen.foreign_snapshot:
        return None
    name = config_map_name(seen.name, seen.state.round or 0)
    said = Event(NAME_CONFLICT, f"ConfigMap {name} was not made by this operator, and is deleted")
    return Plan(state=seen.state, steps=(Delete(CONFIG_MAPS, name, seen.foreign_snapshot),), events=(said,))
