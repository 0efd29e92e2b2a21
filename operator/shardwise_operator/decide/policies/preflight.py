"""`spec.preflight: plan`: a pod without accelerators plans the job before any other pod is created.

A job that does not fit waits like one that does not go with its class, and holds nothing: its owner changes it under
`suspend`, or takes `preflight` out, and it starts all the same. A plan that comes to no verdict fails the job. A plan's
pod that was lost (evicted, deleted, its node gone) is created again, within a bound. A round starts with a plan, unless
the same was planned before and has fitted.
"""

from collections.abc import Mapping
from dataclasses import replace

from shardwise.protocol.pods import PLAN, Verdict
from shardwise_operator import reasons
from shardwise_operator.decide.budgets import wait_seconds
from shardwise_operator.decide.endings import failed
from shardwise_operator.decide.pending import pod_problems
from shardwise_operator.decide.plan import Event, Plan
from shardwise_operator.decide.policies.losses import cause_of
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.state import Finding, Phase, Preflight, State
from shardwise_operator.reasons import FALSE, TRUE, UNKNOWN, ConditionStatus, Lost

_MAX_LOST = 5
# Losses that are no fault of the plan: another pod may come to a verdict.
_NOT_ITS_OWN = (Lost.EVICTION, Lost.NODE_LOST, Lost.MAINTENANCE, Lost.ADMISSION)
# By whether the job fits, None if that is unknown: the finding, and the condition with its reason.
_FINDINGS: Mapping[bool | None, tuple[Finding, ConditionStatus, str]] = {
    True: (Finding.FITS, TRUE, reasons.FITTING),
    False: (Finding.NOT_FITTING, FALSE, reasons.NOT_FITTING),
    None: (Finding.UNKNOWN, UNKNOWN, reasons.MEMORY_UNKNOWN),
}
_PLANNING = "the job is planned before its pods are made"


def begin(seen: Observed, state: State, now: float) -> State:
    """Return the state of a round that starts, with a plan to be made if one is asked for and has no verdict yet."""
    assert seen.desired is not None
    if not seen.preflight:
        return _not_asked(state, now)
    digest = seen.desired.planned_digest
    if state.preflight and state.preflight.of == digest and state.cleared:
        return state
    return replace(state, preflight=Preflight(of=digest)).with_condition(
        reasons.FITS, UNKNOWN, reasons.PLANNING, "", now=now
    )


def decide(seen: Observed, now: float) -> Plan | None:
    """Judge the job by its plan, if it has one with something new."""
    if seen.state.cleared:
        return None
    if not seen.preflight:
        return Plan(state=_not_asked(_without_pod(seen.state, now), now))
    return _of_its_pod(seen, now) if PLAN in seen.state.pods else None


def with_phase(seen: Observed, now: float) -> State:
    """Return the state with the phase and the conditions while the plan is made, or after it did not fit."""
    state, condition = seen.state, seen.state.condition(reasons.FITS)
    if state.planning:
        pod = seen.current(PLAN)
        reason, message = next(pod_problems([pod] if pod else []), (reasons.PLANNING, _PLANNING))
    else:
        reason, message = reasons.NOT_FITTING, condition.message if condition else ""
    state = state.at(Phase.PENDING, FALSE, reason, message, now=now)
    return state.with_condition(reasons.SCHEDULED, FALSE, reason, message, now=now)


def wake(seen: Observed, now: float) -> float | None:
    """Return how long a pod of the plan may still take until it runs; None if none is waited for."""
    pod = seen.current(PLAN)
    if not seen.state.planning or seen.made_of is None or pod is None or pod.phase != "Pending":
        return None
    if pod.created_at is None:
        return None
    # Not from when it was to be made: a quota of its namespace may have kept it out for longer.
    return max(0.0, pod.created_at + seen.made_of.job.spec.recovery.start_within.seconds - now)


def _of_its_pod(seen: Observed, now: float) -> Plan | None:
    pod = seen.current(PLAN)
    if pod is None or (pod.deleting_at is not None and not pod.ended):
        return _retry(seen, cause_of(pod, PLAN, seen), now)
    if not pod.ended:
        return _too_late(seen, pod, now)
    verdict = Verdict.loads(pod.termination_message)
    if verdict is not None:
        return _judged(seen, verdict, now)
    cause = cause_of(pod, PLAN, seen)
    return _retry(seen, cause, now) if cause in _NOT_ITS_OWN else _without_verdict(seen, pod, now)


def _judged(seen: Observed, verdict: Verdict, now: float) -> Plan:
    assert seen.state.preflight is not None
    finding, status, reason = _FINDINGS[verdict.fits]
    state = replace(_without_pod(seen.state, now), preflight=replace(seen.state.preflight, finding=finding))
    state = state.with_condition(reasons.FITS, status, reason, verdict.words, now=now)
    events = (Event(reasons.NOT_FITTING, verdict.words),) if finding == Finding.NOT_FITTING else ()
    return Plan(state=replace(state, reason=reason, message=verdict.words), events=events)


def _retry(seen: Observed, cause: Lost, now: float) -> Plan:
    """Replace a lost pod of the plan, within a bound."""
    before = seen.state.preflight
    assert before is not None
    lost = before.lost + 1
    if lost > _MAX_LOST:
        too_often = f"the plan lost its pod {lost} times, the last time to {cause}; nothing else was made"
        return failed(seen, reasons.PREFLIGHT_FAILED, too_often, now)
    state, not_before = seen.state.renewed((PLAN,)), now + wait_seconds(seen, lost)
    state = replace(state, preflight=replace(before, lost=lost), not_before=not_before)
    return Plan.warning(state, reasons.REPLACED, f"the plan lost its pod: {cause}")


def _too_late(seen: Observed, pod: Pod, now: float) -> Plan | None:
    left = wake(seen, now)
    if left is None or left > 0.0:
        return None
    why = next((f": {reason}: {message}" for reason, message in pod_problems([pod])), "")
    return failed(seen, reasons.PREFLIGHT_FAILED, f"the plan's pod {pod.name} did not run within startWithin{why}", now)


def _without_verdict(seen: Observed, pod: Pod, now: float) -> Plan:
    how = pod.reason or pod.exit_reason or "without a word"
    code = "" if pod.exit_code is None else f", exit code {pod.exit_code}"
    output = f":\n{pod.termination_message.strip()}" if pod.termination_message.strip() else ""
    return failed(seen, reasons.PREFLIGHT_FAILED, f"the plan's pod {pod.name} ended ({how}{code}){output}", now)


def _without_pod(state: State, not_before: float) -> State:
    pods = {key: uid for key, uid in state.pods.items() if key != PLAN}
    return replace(state, pods=pods, not_before=not_before)


def _not_asked(state: State, now: float) -> State:
    """Return the state without a plan: the verdict of an earlier one is about something else."""
    state = replace(state, preflight=None)
    return (
        state.with_condition(reasons.FITS, UNKNOWN, reasons.NOT_ASKED, "", now=now)
        if state.condition(reasons.FITS)
        else state
    )
