"""The status of a job as it is written: the state that was decided, and what is known of the training.

Figures that may not be finite (loss, speed) are text. What no one reports any more keeps its last value.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from shardwise.protocol import eta
from shardwise.protocol.contract import Cause
from shardwise.protocol.job_status import (
    MAX_MESSAGE,
    HostCount,
    JobProgress,
    JobStatus,
    SavedCheckpoint,
    SavesFailed,
)
from shardwise.protocol.message import MAX_INT32
from shardwise.protocol.pods import PLAN, TerminationRecord
from shardwise.protocol.run_status import RunSummary, goodput_share
from shardwise_operator.decide.plan import Plan
from shardwise_operator.decide.policies.outcome import termination_record
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import host_of
from shardwise_operator.observe.state import Phase, State
from shardwise_operator.observe.state_fields import write_state
from shardwise_operator.reasons import FALSE, INVALID, NAME_CONFLICT, NOT_STARTED, READY, SCHEDULED, Lost
from shardwise_operator.runtime.kinds import timestamp
from shardwise_operator.write.apply import Outcome
from shardwise_operator.write.phases import recorded
from shardwise_operator.write.standard_conditions import with_standard_conditions

_MAX_MESSAGE = 4096
_MAX_FIGURE = 32
_OF_THE_RUN = ("progress", "checkpoint", "failedSaves", "goodput", "digest")
_OF_A_PLACE = ("checkpoint", "failedSaves")
# Decisions go by these reasons, and by their messages: what is refused meanwhile is an event alone.
_GONE_BY = (NOT_STARTED, INVALID, NAME_CONFLICT)
# Fields of a status by their names there; one that is None has nothing new, and keeps its value.
_Fields = Mapping[str, BaseModel | Mapping[str, int] | int | str | None]
_KNOWN = frozenset(field.alias or name for name, field in JobStatus.model_fields.items())


def compose(seen: Observed, plan: Plan, outcome: Outcome, old: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the status after this pass, given the one before it."""
    state = _with_outcome(_with_save(_with_pods(seen, plan.state, outcome), outcome, now), outcome, now)
    state = _bounded(with_standard_conditions(state, now))
    restarts = _restarts(seen, state, old)
    run: _Fields = {
        **_of_the_run(seen, old),
        "restarts": restarts or None,
        "restartCount": min(MAX_INT32, sum(restarts.values())),
        "hosts": _hosts(seen, state, old),
    }
    written: dict[str, Any] = {
        name: value.model_dump(by_alias=True, exclude_none=True) if isinstance(value, BaseModel) else value
        for name, value in run.items()
        if value is not None
    }
    step = written.get("progress", old.get("progress", {})).get("step")
    if phases := recorded(old, state.phase, restarts, step, now):
        written["phases"] = [*phases]
    status = {**_kept(seen, old), **write_state(state, seen.generation), **written}
    if _begins_elsewhere(seen, plan.state):
        status = {name: value for name, value in status.items() if name not in _OF_A_PLACE}
    return status


def _begins_elsewhere(seen: Observed, state: State) -> bool:
    """Return whether a round begins whose checkpoints are not where those of the round before are.

    Budgets go by the newest step, and one of other checkpoints says nothing of it.
    """
    before, after = seen.snapshot, seen.desired
    if state.round == seen.state.round or before is None or after is None:
        return False
    return before.checkpoint_place != after.checkpoint_place


def _with_pods(seen: Observed, state: State, outcome: Outcome) -> State:
    """Return the state with the UID of every current pod that exists.

    A host that the job no longer has keeps its number: a pod of it that cannot end is of an earlier round.
    """
    if state.finished or state.phase == Phase.SUSPENDED:
        return state
    counted = [pod for pod in seen.pods if pod.round == state.round and (pod.key != PLAN or state.planning)]
    known = {pod.key: pod.uid for pod in counted if state.attempts.get(pod.key) == pod.attempt}
    made = {host_of(pod): pod["metadata"]["uid"] for pod in outcome.pods}
    return replace(state, pods={**state.pods, **known, **made})


def _with_save(state: State, outcome: Outcome, now: float) -> State:
    """Return the state with the nodes for which host 0 has agreed to save."""
    if not outcome.leaving:
        return state
    return replace(state, leaving={**state.leaving, **outcome.leaving}, save_asked_at=now)


def _with_outcome(state: State, outcome: Outcome, now: float) -> State:
    """Return the state with what the API server has refused."""
    if not outcome.reason or (outcome.refused and state.reason in _GONE_BY):
        return state
    state = replace(state, reason=outcome.reason, message=outcome.message[:_MAX_MESSAGE])
    if outcome.refused:
        return state
    kind = READY if outcome.reason == NAME_CONFLICT else SCHEDULED
    return state.with_condition(kind, FALSE, outcome.reason, outcome.message[:_MAX_MESSAGE], now=now)


def _bounded(state: State) -> State:
    """Return the state with messages that the API server takes: one that is longer would keep the whole status out."""
    conditions = tuple(replace(each, message=each.message[:MAX_MESSAGE]) for each in state.conditions)
    return replace(state, message=state.message[:MAX_MESSAGE], conditions=conditions)


def _kept(seen: Observed, old: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the old status has of the run, and fields of a newer release, which a rollback must not lose."""
    kept = {name: old[name] for name in old if name in _OF_THE_RUN or name not in _KNOWN}
    reported = seen.poll.status if seen.poll else None
    if termination_record(seen) or (reported and reported.failed_saves is None):
        kept.pop("failedSaves", None)  # a save has succeeded since, or the trainers begin anew
    return kept


def _of_the_run(seen: Observed, old: Mapping[str, Any]) -> _Fields:
    """Return what the run reports: by its termination record if it has ended, else by the status of host 0."""
    record = _record_of_the_run(seen)
    if record is not None:
        return _recorded(record, old)
    if seen.poll is None or seen.poll.status is None:
        return {}
    return _reported(seen, seen.poll.status, old, seen.poll.heard_at)


def _record_of_the_run(seen: Observed) -> TerminationRecord | None:
    """Return the termination record if it has the run's figures: that of an agent that could not begin has none."""
    record = termination_record(seen)
    return None if record is None or (record.attempt is None and record.steps == 0) else record


def _recorded(record: TerminationRecord, old: Mapping[str, Any]) -> _Fields:
    loss, held_out = (
        None if written is None else _text(float(written), ".4f") for written in (record.loss, record.held_out_loss)
    )
    step, known = record.checkpoint_step, old.get("checkpoint", {}).get("step")
    return {
        "progress": JobProgress(step=record.step, of=record.steps, loss=loss, held_out_loss=held_out),
        "checkpoint": None if step is None or step == known else SavedCheckpoint(step=step),
        "digest": record.digest or None,
        "goodput": _goodput(record.goodput),
    }


def _reported(seen: Observed, status: RunSummary, old: Mapping[str, Any], heard_at: float) -> _Fields:
    run, slowest = status.progress, status.slowest_host
    progress = JobProgress(
        step=run.step,
        of=run.of,
        loss=_text(run.loss, ".4f"),
        held_out_loss=_text(run.held_out_loss, ".4f"),
        tokens_per_second=_text(run.tokens_per_second, ".0f"),
        mfu=_text(run.mfu, ".1%"),
        eta=None if run.eta_seconds is None else eta.words(run.eta_seconds),
        slowest_host=seen.hosts[slowest] if slowest is not None and slowest < len(seen.hosts) else None,
        observed_at=timestamp(heard_at),
    )
    return {
        "progress": None if _only_later(progress, old.get("progress", {})) else progress,
        "checkpoint": _checkpoint(status, old, heard_at),
        "failedSaves": _failed_saves(status, old, heard_at),
        "goodput": _goodput(status.goodput),
    }


def _failed_saves(status: RunSummary, old: Mapping[str, Any], heard_at: float) -> SavesFailed | None:
    """Return the saves that have failed, and when that was first heard; None if the old status has them."""
    failed, known = status.failed_saves, old.get("failedSaves", {})
    if failed is None or (failed.in_a_row, failed.reason) == (known.get("inARow"), known.get("reason")):
        return None
    return SavesFailed(in_a_row=failed.in_a_row, reason=failed.reason, time=timestamp(heard_at))


def _only_later(progress: JobProgress, before: Mapping[str, Any]) -> bool:
    """Return whether nothing but the time has moved on, which alone is worth no write."""
    written = progress.model_dump(by_alias=True, exclude_none=True)
    return before == {**written, "observedAt": before.get("observedAt")}


def _checkpoint(status: RunSummary, old: Mapping[str, Any], heard_at: float) -> SavedCheckpoint | None:
    """Return the newest checkpoint, and when it was first heard of; None if the old status has it."""
    newest = status.checkpoint
    if newest is None or newest.step == old.get("checkpoint", {}).get("step"):
        return None
    return SavedCheckpoint(step=newest.step, time=timestamp(heard_at), seconds=_text(newest.seconds, ".2f"))


def _text(value: float | str | None, form: str) -> str | None:
    """Return a number as text; what is text already (a loss that is not finite) stays."""
    if value is None:
        return None
    return (value if isinstance(value, str) else format(value, form))[:_MAX_FIGURE]


def _goodput(seconds: Mapping[str, float]) -> str | None:
    """Return the share of the wall time in which steps that count were taken."""
    return _text(goodput_share(seconds), ".0%")


def _restarts(seen: Observed, state: State, old: Mapping[str, Any]) -> dict[str, int]:
    """Count every restart once, by cause: the run counts a loss of pods too, as a lost host.

    It counts none of an image that could not be pulled: no run was there.
    """
    reported, before = _record_of_the_run(seen) or seen.status, seen.state.losses
    if reported is None:
        own = {cause: count - before.get(cause, 0) for cause, count in old.get("restarts", {}).items()}
    else:
        of_pods = sum(count for cause, count in state.losses.items() if cause != Lost.IMAGE)
        own = {**reported.restarts, Cause.HOST_LOST: max(0, reported.restarts.get(Cause.HOST_LOST, 0) - of_pods)}
    counts = {str(cause): own.get(cause, 0) + state.losses.get(cause, 0) for cause in sorted({*own, *state.losses})}
    return {cause: min(MAX_INT32, count) for cause, count in counts.items() if count}


def _hosts(seen: Observed, state: State, old: Mapping[str, Any]) -> HostCount:
    """Count the hosts that have joined, as host 0 reports them, and of which there still are pods that run.

    An image of an older release tells nothing of it: then all pods that run count.
    """
    before = old.get("hosts", {})
    placeholders = frozenset(seen.absent_hosts)
    alive = [pod for pod in seen.pods if pod.key != PLAN and pod.key not in placeholders and not pod.ended]
    running = sum(pod.ready for pod in alive if state.pods.get(pod.key) == pod.uid)
    reported = seen.poll.status if seen.poll else None
    joined = before.get("ready", 0) if reported is None else reported.joined
    ready = running if joined is None else min(joined, running)
    # Of a finished job nothing is observed that would tell its number of hosts.
    of = len(seen.hosts) + len(placeholders) if seen.made_of else before.get("of", 0)
    return HostCount(ready=ready, of=of, summary=f"{ready}/{of}")
