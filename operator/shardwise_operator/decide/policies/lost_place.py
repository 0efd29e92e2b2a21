"""A slice whose place is gone: a pod waits for a node of the slice's place, which has no node any more.

The whole slice gets another place, and no budget is charged.
"""

from dataclasses import replace

from shardwise_operator.decide.plan import Plan
from shardwise_operator.decide.relocation import relocate_slice
from shardwise_operator.observe.observed import Observed
from shardwise_operator.reasons import RELOCATED

# No watch reports a place whose last node has gone.
_LOOK_AGAIN_SECONDS = 30.0


def decide(seen: Observed, now: float) -> Plan | None:
    """Relocate the slices whose place is gone."""
    if not seen.gone_places:
        return None
    state = seen.state
    for slice_ in sorted(seen.gone_places):
        state = relocate_slice(seen, state, slice_)
    slices = ", ".join(map(str, sorted(seen.gone_places)))
    message = f"moved elsewhere, because their place has no nodes left: slices {slices}"
    return Plan.warning(replace(state, not_before=max(now, state.not_before or 0.0)), RELOCATED, message)


def wake(seen: Observed, _now: float) -> float | None:
    """Return when to look again whether the place is still there; None if no pod waits for one."""
    return _LOOK_AGAIN_SECONDS if any(True for _ in seen.settling()) else None
