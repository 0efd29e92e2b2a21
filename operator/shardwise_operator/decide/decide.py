"""Decide what to do for one job: the first policy with a plan decides; if none has one, the round is maintained.

Pure: everything it knows is what was observed and the time.
"""

from dataclasses import replace

from shardwise_operator.config import Settings
from shardwise_operator.decide.maintain import maintain
from shardwise_operator.decide.plan import Plan, Policy, soonest
from shardwise_operator.decide.policies import (
    adoption,
    avoided_nodes,
    deadline,
    eviction,
    fewer_slices,
    finished,
    foreign_snapshot,
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
    adoption,  # before all that goes by the round, which the status does not have yet
    outcome,  # a run that has ended has ended, whatever else is asked of the job
    eviction,  # before the suspension, which ends where this one goes on: in the queue
    suspension,  # before the losses: pods that go because they were told to are not charged
    new_round,  # starts the round that all policies below are about
    deadline,  # before the losses: a round that is to end gets no replacements
    foreign_snapshot,  # after what ends a round or a run, and before all that makes a pod
    preflight,  # before the losses: until its plan fits, a job has no pods to lose
    losses,  # before the relocations: a lost pod gets a new attempt anyway
    lost_place,  # a place without nodes cannot be waited for, so it comes before the timeouts
    avoided_nodes,  # before the start timeout: one host goes back rather than all pods being released
    not_started,  # before the start timeout, which keeps the quota
    fewer_slices,  # before the start timeout, which gives all of them back
    start_timeout,  # last: it releases every pod of the job
)


def decide(seen: Observed, settings: Settings, now: float) -> Plan:
    """Return the plan of this pass; `now` is in seconds since the epoch."""
    if seen.deleting:  # the garbage collector deletes what the job owns
        return Plan(state=seen.state)
    for policy in POLICIES:
        plan = policy.decide(seen, now)
        if plan is None:
            continue
        if policy is new_round and _begins_at_once(seen, plan, settings):
            return _maintained(replace(seen, state=plan.state), settings, now)
        return plan
    return _maintained(seen, settings, now)


def _maintained(seen: Observed, settings: Settings, now: float) -> Plan:
    plan = maintain(seen, settings, now)
    wakes = [policy.wake(seen, now) for policy in POLICIES]
    return replace(plan, requeue_after_seconds=soonest([plan.requeue_after_seconds, *wakes]))


def _begins_at_once(seen: Observed, plan: Plan, settings: Settings) -> bool:
    """Return whether what a round needs may be made before the status has the round, which spares a write and a pass.

    The first one's names are known without the status, so that a successor finds what was made (`adoption.py`). Plans,
    queues and gangs count on a round that is written.
    """
    first = seen.state.round is None and plan.state.round == 0 and not seen.pods and not seen.foreign_snapshot
    return first and not (seen.preflight or seen.queueing or settings.gang_scheduling)
