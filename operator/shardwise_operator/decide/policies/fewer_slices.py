"""Go on with the slices that are whole once the others have been waited for (`recovery.minSlices`).

This is of rounds that the operator waits for, at their start or for a host 0 that is lost; where a leader waits for the
others, its record says that it has waited long enough (`outcome.py`). No budget is charged: the loss was.
"""

from shardwise_operator.decide.plan import Plan, never
from shardwise_operator.decide.policies import new_round, start_timeout
from shardwise_operator.decide.slices import elastic, next_slices, num_slices, words
from shardwise_operator.observe.observed import Observed
from shardwise_operator.reasons import SLICES_LEFT_OUT

wake = never  # it goes by the start timeout, which has its own


def decide(seen: Observed, now: float) -> Plan | None:
    """Start a round with fewer slices in place of waiting for all again."""
    if start_timeout.remaining_seconds(seen, now) != 0.0:
        return None
    return without_the_missing(seen, start_timeout.late(seen), now)


def without_the_missing(seen: Observed, why: str, now: float) -> Plan | None:
    """Return the plan of a round of the slices that are whole; None if it would have as many as this one."""
    if not elastic(seen) or next_slices(seen) >= num_slices(seen):
        return None
    message = f"{why}; goes on with {words(next_slices(seen), seen)}"
    return new_round.next_round(seen, None, SLICES_LEFT_OUT, message, now)
