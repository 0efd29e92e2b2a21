"""`spec.preflight: plan`: a pod without accelerators plans the job before any other pod is made.

A job that does not fit waits, as one that does not go with its class, and holds nothing: it is changed under `suspend`,
or `preflight` is taken out, and it starts all the same. A plan that was asked for and comes to no verdict ends the job.
A pod of it that was lost (evicted, deleted, its node gone) is made again, within a bound. Decided when a round begins;
what has fitted once is not planned again.
"""

from dataclasses import replace

from shardwise.job.pods import PLAN, Verdict
from shardwise_operator.observed import Observed
from shardwise_operator.plan import Event, Plan
from shardwise_operator.pod import Pod
from shardwise_operator.policies.budgets import backoff_seconds
from shardwise_operator.policies.endings import failed
from shardwise_operator.policies.losses import cause_of
from shardwise_operator.policies.pending import troubles
from shardwise_operator.state import Finding, Phase, Preflight, State
from shardwise_operator.words import (
    FALSE,
    FITS,
    FITTING,
    MEMORY_UNKNOWN,
    NOT_ASKED,
    NOT_FITTING,
    PLANNING,
    PREFLIGHT_FAILED,
    READY,
    REPLACED,
    SCHEDULED,
    TRUE,
    UNKNOWN,
    Lost,
)

_MOST_LOST = 5
# What is no fault of the plan: another pod may come to a verdict.
_NOT_ITS_OWN = (Lost.EVICTION, Lost.NODE_LOST, Lost.MAINTENANCE, Lost.ADMISSION)
_SAID = {
    Finding.FITS: (TRUE, FITTING),
    Finding.NOT_FITTING: (FALSE, NOT_FITTING),
    Finding.UNKNOWN: (UNKNOWN, MEMORY_UNKNOWN),
}
_WORDS = "the job is planned before its pods are made"


def begin(seen: Observed, state: State, now: float) -> State:
    """The state of a round that begins, with the plan that comes first where one is asked for and is not known."""
    assert seen.asked is not None
    if not seen.preflight:
        return _not_asked(state, now)
    digest = seen.asked.planned_digest
    if state.preflight and state.preflight.of == digest and state.cleared:
        return state
    return replace(state, preflight=Preflight(of=digest)).saying(FITS, UNKNOWN, PLANNING, "", now=now)


def decide(seen: Observed, now: float) -> Plan | None:
    """Judge the job by its plan; None where there is none to wait for, or nothing new of it."""
    if seen.state.cleared:
        return None
    if not seen.preflight:
        return Plan(state=_not_asked(_without_pod(seen.state, now), now))
    return _of_its_pod(seen, now) if seen.state.planning and PLAN in seen.state.pods else None


def stand(seen: Observed, now: float) -> State:
    """The state, with how the plan stands."""
    state, condition = seen.state, seen.state.condition(FITS)
    if state.planning:
        pod = seen.current(PLAN)
        reason, words = next(troubles([pod] if pod else []), (PLANNING, _WORDS))
    else:
        reason, words = NOT_FITTING, condition.message if condition else ""
    state = replace(state, phase=Phase.PENDING, reason=reason, message=words)
    for kind in (READY, SCHEDULED):
        state = state.saying(kind, FALSE, reason, words, now=now)
    return state


def remaining_seconds(seen: Observed, now: float) -> float | None:
    """How long a pod of the plan may still take until it runs; None where none is waited for."""
    pod = seen.current(PLAN)
    if not seen.state.planning or seen.made_of is None or pod is None or pod.phase != "Pending":
        return None
    since = max(seen.state.started_at or 0.0, seen.state.not_before or 0.0)
    return max(0.0, since + seen.made_of.job.spec.recovery.start_within.seconds - now)


def _of_its_pod(seen: Observed, now: float) -> Plan | None:
    pod = seen.current(PLAN)
    if pod is None or (pod.deleting_at is not None and not pod.ended):
        return _again(seen, cause_of(pod, PLAN, seen), now)
    if not pod.ended:
        return _too_late(seen, pod, now)
    verdict = Verdict.loads(pod.words)
    if verdict is not None:
        return _judged(seen, verdict, now)
    cause = cause_of(pod, PLAN, seen)
    return _again(seen, cause, now) if cause in _NOT_ITS_OWN else _without_verdict(seen, pod, now)


def _judged(seen: Observed, verdict: Verdict, now: float) -> Plan:
    assert seen.state.preflight is not None
    finding = Finding.UNKNOWN if verdict.fits is None else Finding.FITS if verdict.fits else Finding.NOT_FITTING
    status, reason = _SAID[finding]
    state = replace(_without_pod(seen.state, now), preflight=replace(seen.state.preflight, finding=finding))
    state = state.saying(FITS, status, reason, verdict.words, now=now)
    events = (Event("Warning", NOT_FITTING, verdict.words),) if finding == Finding.NOT_FITTING else ()
    return Plan(state=replace(state, reason=reason, message=verdict.words), events=events)


def _again(seen: Observed, cause: Lost, now: float) -> Plan:
    """Another pod for one that was lost."""
    before = seen.state.preflight
    assert before is not None
    lost = before.lost + 1
    if lost > _MOST_LOST:
        words = f"the plan lost its pod {lost} times, the last time to {cause}; nothing else was made"
        return failed(seen, PREFLIGHT_FAILED, words, now)
    words = f"the plan lost its pod: {cause}"
    state = _without_pod(seen.state, now + backoff_seconds(seen, lost))
    state = replace(
        state,
        preflight=replace(before, lost=lost),
        attempts={**state.attempts, PLAN: state.attempts[PLAN] + 1},
        reason=REPLACED,
        message=words,
    )
    return Plan(state=state, events=(Event("Warning", REPLACED, words),))


def _too_late(seen: Observed, pod: Pod, now: float) -> Plan | None:
    left = remaining_seconds(seen, now)
    if left is None or left > 0.0:
        return None
    why = next((f": {reason}: {words}" for reason, words in troubles([pod])), "")
    return failed(seen, PREFLIGHT_FAILED, f"the plan's pod {pod.name} did not run within startWithin{why}", now)


def _without_verdict(seen: Observed, pod: Pod, now: float) -> Plan:
    how = pod.reason or pod.exit_reason or "without a word"
    code = "" if pod.exit_code is None else f", exit code {pod.exit_code}"
    said = f":\n{pod.words.strip()}" if pod.words.strip() else ""
    return failed(seen, PREFLIGHT_FAILED, f"the plan's pod {pod.name} ended ({how}{code}){said}", now)


def _without_pod(state: State, not_before: float) -> State:
    pods = {key: uid for key, uid in state.pods.items() if key != PLAN}
    return replace(state, pods=pods, not_before=not_before)


def _not_asked(state: State, now: float) -> State:
    """The state without a plan; what an earlier one said is said of something else."""
    state = replace(state, preflight=None)
    return state.saying(FITS, UNKNOWN, NOT_ASKED, "", now=now) if state.condition(FITS) else state
