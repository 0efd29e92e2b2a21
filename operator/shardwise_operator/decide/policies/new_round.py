"""Start a round, the first one too: the life of a job from one start of all its pods to the next, or to its end.

A round starts if the job goes with its class; what it is made of is fixed from then on, in a snapshot. The next pass
creates its pods, once the status has the round; those of most first rounds come with this one (`decide.py`). They have
new names, because the attempts of their hosts go on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from shardwise.protocol.job_status import MAX_HOSTS
from shardwise.protocol.pods import PLAN
from shardwise_operator.decide import endings
from shardwise_operator.decide.budgets import budget, charge
from shardwise_operator.decide.plan import Event, Plan, never, soonest
from shardwise_operator.decide.policies import cleanup, deadline, preflight, queueing
from shardwise_operator.decide.slices import still_fewer, with_slices
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Phase, State
from shardwise_operator.reasons import FALSE, INVALID, READY, RESUMED, STARTED, SUSPEND_ASKED, SUSPENDED, TRUE, Lost

wake = never  # a job whose class is missing is woken by the class


def decide(seen: Observed, now: float) -> Plan | None:
    """Start a round if none is under way."""
    state = seen.state
    if state.round is not None and state.phase != Phase.SUSPENDED:
        # One that began by itself has its snapshot of now, and the class may give it hosts that no round had before.
        state = state.renewed(host for host in seen.hosts if host not in state.attempts)
        state = replace(state, slices=still_fewer(seen))
        return Plan(state=state) if state != seen.state else _not_to_be_made(seen, now)
    if seen.suspend:  # before its first round
        state = replace(state, phase=Phase.SUSPENDED, reason=SUSPEND_ASKED)
        return Plan(state=state.with_condition(SUSPENDED, TRUE, SUSPEND_ASKED, "", now=now))
    if seen.desired is None:
        return _invalid(seen, now)
    if seen.queueing and seen.queueing.workload:  # of before the suspend: the job enters its queue anew
        return Plan(state=state, steps=tuple(queueing.left(seen)))
    resumed = state.phase == Phase.SUSPENDED
    reason = RESUMED if resumed else STARTED
    number = 0 if state.round is None else state.round + 1
    state = _anew(state, number, seen.desired.hosts, reason, now)
    if resumed:
        state = state.with_condition(SUSPENDED, FALSE, RESUMED, "", now=now)
    state = preflight.begin(seen, state, now)
    if state.planning:
        state = state.renewed((PLAN,))
    events = (Event(RESUMED, f"round {number}"),) if resumed else ()
    return Plan(state=state.with_condition(READY, FALSE, reason, "", now=now), events=events)


def first(seen: Observed, now: float) -> State:
    """Return the state at the beginning of a first round that has its snapshot."""
    state = _anew(seen.state, 0, seen.hosts, STARTED, now)
    return state.with_condition(READY, FALSE, STARTED, "", now=now)


def queued_again(seen: Observed, reason: str, message: str, now: float) -> Plan:
    """Start another round of a run that has saved and stopped, which has to be admitted before it has pods."""
    assert seen.state.round is not None
    state = _anew(seen.state, seen.state.round + 1, seen.all_hosts, reason, now).at_rest(reason, now=now)
    return Plan(state=state.at(Phase.PENDING, FALSE, reason, message, now=now))


def next_round(
    seen: Observed, cause: Lost | None, reason: str, message: str, now: float, *, wait_seconds: float = 0.0
) -> Plan:
    """Start another round of the same run after a wait, charged to `cause`; fail the job if that budget is used up.

    Without a cause it costs nothing. A job that may go on with fewer slices has those that are whole.
    """
    assert seen.state.round is not None
    state = replace(seen.state, not_before=now + wait_seconds)
    if cause is not None:
        charged = charge(seen, state, cause, now)
        if charged is None:
            used_up = f"{message}; its budget of {budget(seen, cause)} restarts is used up"
            return endings.failed(seen, reason, used_up, now)
        state = charged
    phase = Phase.PENDING if wait_seconds else Phase.RECOVERING
    number = seen.state.round + 1
    # Without a class nothing tells the hosts, and those that have had pods need others all the same.
    hosts = seen.hosts or tuple(host for host in state.attempts if host != PLAN)
    state = replace(
        with_slices(seen, state.renewed(hosts), now),
        phase=phase,
        round=number,
        sealed_round=number,
        image="",
        started_at=now,
        stop_asked_at=None,
    )
    return Plan.warning(state, reason, message)


def _anew(state: State, number: int, hosts: Iterable[str], reason: str, now: float) -> State:
    """Return the state at the beginning of a round: all that is not of the job's whole life begins anew."""
    return State(
        reason=reason,
        round=number,
        sealed_round=number,
        preflight=state.preflight,
        attempts=_attempts(state, tuple(hosts)),
        losses=state.losses,
        save_asked_at=state.save_asked_at,
        started_at=now,
        conditions=state.conditions,
    )


def _attempts(state: State, hosts: tuple[str, ...]) -> Mapping[str, int]:
    """Return the numbers of the pods of a round, in which a host that comes back has names that it has not had.

    Hosts that the job no longer has keep their numbers as long as the status has room. Then they are forgotten, and
    those of this round go on above: so a host that is new begins with the least number of those that are known.
    """
    known = {host: number for host, number in state.attempts.items() if host != PLAN}
    if len(known.keys() | hosts) <= MAX_HOSTS:
        least = min(known.values(), default=0)
        return {**state.renewed(hosts).attempts, **{host: least for host in hosts if host not in known}}
    plan = {PLAN: state.attempts[PLAN]} if PLAN in state.attempts else {}
    return plan | dict.fromkeys(hosts, max(known.values()) + 1)


def _not_to_be_made(seen: Observed, now: float) -> Plan | None:
    """Return the plan of a round that began by itself, and whose job no longer goes with its class; None of others.

    It waits for the class as a first round does, and holds nothing meanwhile: neither pods of earlier rounds nor quota.
    Its deadline still counts. So it does for a round that has pods and has lost its snapshot, whose pods go on.
    """
    if seen.made_of is not None or deadline.passed(seen, now):
        return None
    if seen.round_pods():
        return _said(seen, seen.state, now)
    steps = (*cleanup.decide(seen, now).steps, *(queueing.left(seen) if endings.all_ended(seen, now) else ()))
    again = soonest([cleanup.wake(seen, now), deadline.wake(seen, now)])
    return replace(_invalid(seen, now), steps=steps, requeue_after_seconds=again)


def _invalid(seen: Observed, now: float) -> Plan:
    return _said(seen, seen.state.at_rest(INVALID, now=now), now)


def _said(seen: Observed, state: State, now: float) -> Plan:
    state = state.at(state.phase, FALSE, INVALID, seen.problem, now=now)
    known = seen.state.reason == INVALID and seen.state.message == seen.problem
    return Plan(state=state, events=() if known else (Event(INVALID, seen.problem),))
