"""A round: the life of a run from its start, or from a resume, to its suspension or end.

What a round is made of is frozen when it begins. It begins here, where the job goes with its class; its pods are made
by the next pass, once the status says that it has begun. Pods of a new round have new names: the numbers of their hosts
go on.
"""

from dataclasses import replace

from shardwise.job.pods import PLAN
from shardwise_operator.observed import Observed
from shardwise_operator.plan import Event, Plan
from shardwise_operator.policies import endings, preflight
from shardwise_operator.policies.budgets import budget, charge
from shardwise_operator.state import Phase, next_attempts
from shardwise_operator.words import FALSE, INVALID, READY, RESUMED, STARTED, SUSPEND_ASKED, SUSPENDED, TRUE, Lost


def decide(seen: Observed, now: float) -> Plan | None:
    """Begin a round where none is under way; None where one is."""
    state = seen.state
    if state.round is not None and state.phase != Phase.SUSPENDED:
        return None
    if seen.suspend:  # before its first round
        state = replace(state, phase=Phase.SUSPENDED, reason=SUSPEND_ASKED)
        return Plan(state=state.saying(SUSPENDED, TRUE, SUSPEND_ASKED, "", now=now))
    if seen.asked is None:
        return _invalid(seen, now)
    resumed = state.phase == Phase.SUSPENDED
    reason = RESUMED if resumed else STARTED
    number = 0 if state.round is None else state.round + 1
    state = replace(
        state,
        phase=Phase.PENDING,
        reason=reason,
        message="",
        round=number,
        attempts=next_attempts(state.attempts, seen.asked.hosts),
        pods={},
        charged={},
        charged_step=-1,
        last_loss={},
        lost_at={},
        avoid={},
        leaving={},
        image="",
        started_at=now,
        ran_at=None,
        not_before=None,
        stop_asked_at=None,
    )
    if resumed:
        state = state.saying(SUSPENDED, FALSE, RESUMED, "", now=now)
    state = preflight.begin(seen, state, now)
    if state.planning:
        state = replace(state, attempts=next_attempts(state.attempts, (PLAN,)))
    events = (Event("Normal", RESUMED, f"round {number}"),) if resumed else ()
    return Plan(state=state.saying(READY, FALSE, reason, "", now=now), events=events)


def again(seen: Observed, cause: Lost, reason: str, message: str, now: float, *, wait_seconds: float = 0.0) -> Plan:
    """A new round of the same run, charged to `cause`, after a wait: the job fails where the budget is used up."""
    state = seen.state
    assert state.round is not None
    charged = charge(seen, replace(state, not_before=now + wait_seconds), cause, now)
    if charged is None:
        words = f"{message}; its budget of {budget(seen, cause)} restarts is used up"
        return endings.failed(seen, reason, words, now)
    state = replace(
        charged,
        phase=Phase.PENDING if wait_seconds else Phase.RECOVERING,
        reason=reason,
        message=message,
        round=state.round + 1,
        attempts=next_attempts(state.attempts, seen.hosts),
        pods={},
        image="",
        stop_asked_at=None,
    )
    return Plan(state=state, events=(Event("Warning", reason, message),))


def _invalid(seen: Observed, now: float) -> Plan:
    state = replace(seen.state, reason=INVALID, message=seen.problem)
    state = state.saying(READY, FALSE, INVALID, seen.problem, now=now)
    said = seen.state.reason == INVALID and seen.state.message == seen.problem
    return Plan(state=state, events=() if said else (Event("Warning", INVALID, seen.problem),))
