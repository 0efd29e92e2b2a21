"""Delete what has the place of a round's snapshot and is not this operator's; the next pass makes the right one.

Pods are made by the operator's rights, of what the snapshot holds. So it may only hold what the job and its class say,
and not what somebody who may write a ConfigMap, but no pod, has put into one. Until it is gone, no pod is made.
"""

from shardwise_operator.decide.plan import Delete, Event, Plan, never
from shardwise_operator.observe.observed import Observed
from shardwise_operator.reasons import FALSE, NAME_CONFLICT
from shardwise_operator.render.names import config_map_name
from shardwise_operator.runtime.kinds import CONFIG_MAPS

_LOOK_AGAIN_SECONDS = 15.0  # a finalizer may keep it
wake = never  # its own plan says when to look again


def decide(seen: Observed, now: float) -> Plan | None:
    """Delete it, unless nothing could take its place."""
    if not seen.foreign_snapshot or seen.desired is None:
        return None
    name, state = config_map_name(seen.name, seen.state.round or 0), seen.state
    message = f"ConfigMap {name} was not made by this operator, and is deleted"
    events = () if state.message == message else (Event(NAME_CONFLICT, message),)
    return Plan(
        state=state.at(state.phase, FALSE, NAME_CONFLICT, message, now=now),
        steps=(Delete(CONFIG_MAPS, name, seen.foreign_snapshot),),
        events=events,
        requeue_after_seconds=_LOOK_AGAIN_SECONDS,
    )
