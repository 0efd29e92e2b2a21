"""Decide what to do for one job: the first policy with a plan decides; if none has one, the round is maintained.

Pure: everything it knows is what was observed and the time.
"""

from dataclasses import replace

from shardwise_operator.config import Settings
from shardwise_operator.decide.maintain import maintain
from shardwise_operator.decide.plan import Plan, Policy, soonest
from shardwise_operator.decide.policies import (
    avoided_nodes,
    deadline,
    eviction,
    finished,
    losses,
    lost_place,
    new_round,
    not_started,
    outcome,
    preflight,
    start_timeout,
    suspension,
)
from shardwise_operator.observe.observed import Observed

POLICIES: tuple[Policy, ...] = (
    finished,  # a Complete or Failed job is only cleaned up
    outcome,  # a run that has ended has ended, whatever else is asked of the job
    eviction,  # before the suspension, which ends where this one goes on: in the queue
    suspension,  # before the losses: pods that go because they were told to are not charged
    new_round,  # starts the round that all policies below are about
    deadline,  # before the losses: a round that is to end gets no replacements
    preflight,  # before the losses: until its plan fits, a job has no pods to lose
    losses,  # before the relocations: a lost pod gets a new attempt anyway
    lost_place,  # a place without nodes cannot be waited for, so it comes before the timeouts
    avoided_nodes,  # before the start timeout: one host goes back rather than all pods being released
    not_started,  # before the start timeout, which keeps the quota
    start_timeout,  # last: it releases every pod of the job
)


def decide(seen: Observed, settings: Settings, now: float) -> Plan:
    """Return the plan of this pass; `now` is in seconds since the epoch."""
    if seen.deleting:  # the garbage collector deletes what the job owns
        return Plan(state=seen.state)
    for policy in POLICIES:
        plan = policy.decide(seen, now)
        if plan is not None:
            return plan
    plan = maintain(seen, settings, now)
    wakes = [policy.wake(seen, now) for policy in POLICIES]
    return replace(plan, requeue_after_seconds=soonest([plan.requeue_after_seconds, *wakes]))
