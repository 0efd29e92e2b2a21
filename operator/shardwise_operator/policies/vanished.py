"""A slice whose place is gone: a pod that is to join the others waits for a node of a place that has none any more.

The slice is placed anew, at nobody's charge; its other pods, if there are any, go with it.
"""

from dataclasses import replace

from shardwise_operator.observed import Observed
from shardwise_operator.plan import Event, Plan
from shardwise_operator.policies.ladder import anew
from shardwise_operator.words import PLACED_ANEW

# A place that goes makes no event of its own.
LOOK_AGAIN_SECONDS = 30.0


def decide(seen: Observed, now: float) -> Plan | None:
    """Place the slices anew whose place is gone; None where there is none."""
    if not seen.gone_places:
        return None
    state = seen.state
    for slice_ in sorted(seen.gone_places):
        state = anew(seen, state, slice_)
    words = f"placed anew, for their place has no node any more: slices {', '.join(map(str, sorted(seen.gone_places)))}"
    state = replace(state, reason=PLACED_ANEW, message=words, not_before=max(now, state.not_before or 0.0))
    return Plan(state=state, events=(Event("Warning", PLACED_ANEW, words),))


def wait_seconds(seen: Observed) -> float | None:
    """When to look again whether the place is still there; None where no pod waits for one."""
    return LOOK_AGAIN_SECONDS if any(True for _ in seen.settling()) else None
