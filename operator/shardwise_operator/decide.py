"""What to do for one job: the first policy that has something to say decides; otherwise the round is cared for.

Pure: everything it knows is what was observed and the time. Called by `controller.py`.
"""

from shardwise_operator.config import Settings
from shardwise_operator.observed import Observed
from shardwise_operator.plan import Plan
from shardwise_operator.policies import (
    deadline,
    finished,
    losses,
    outcome,
    patience,
    preflight,
    rounds,
    stranded,
    suspension,
    vanished,
)
from shardwise_operator.policies.care import care

# In this order: a run that has ended has ended, whatever else is asked for; a pod is not missed where all are to go.
POLICIES = (
    finished.decide,
    outcome.decide,
    suspension.decide,
    rounds.decide,
    deadline.decide,
    preflight.decide,
    losses.decide,
    vanished.decide,
    stranded.decide,
    patience.decide,
)


def decide(seen: Observed, settings: Settings, now: float) -> Plan:
    """The plan of this pass; `now` is in seconds since the epoch."""
    if seen.deleting:  # the garbage collector takes what is its own
        return Plan(state=seen.state)
    for policy in POLICIES:
        plan = policy(seen, now)
        if plan is not None:
            return plan
    return care(seen, settings, now)
