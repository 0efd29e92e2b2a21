"""The status of a job as it is written: the state that was decided, and what is known of the training.

Numbers that may not be numbers (loss, speed) are text. What nobody knows anew stays as it was last said.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwise.job.contract import Cause
from shardwise.job.pods import PLAN, LastRecord
from shardwise.job.status import JobStatus
from shardwise_operator.apply import Outcome
from shardwise_operator.observed import Observed
from shardwise_operator.plan import Plan
from shardwise_operator.policies.outcome import last_record
from shardwise_operator.render.names import host_of
from shardwise_operator.state import Phase, State, timestamp, write_state
from shardwise_operator.words import FALSE, NAME_CONFLICT, READY, SCHEDULED

_MAX_MESSAGE = 4096
_MAX_FIGURE = 32
_MAX_COUNT = 2**31 - 1
_OF_THE_RUN = ("progress", "checkpoint", "goodput", "digest")
_KNOWN = frozenset(field.alias or name for name, field in JobStatus.model_fields.items())


def compose(seen: Observed, plan: Plan, outcome: Outcome, old: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The status after this pass, given the one before it."""
    state = _with_outcome(_with_save(_with_pods(seen, plan.state, outcome), outcome, now), outcome, now)
    restarts = _restarts(seen, state, old)
    known = {
        **_kept(old),
        **_of_the_run(seen, old),
        **({"restarts": restarts} if restarts else {}),
        "restartCount": min(_MAX_COUNT, sum(restarts.values())),
        "hosts": _hosts(seen, state, old),
    }
    return write_state(state, seen.generation) | known


def _with_pods(seen: Observed, state: State, outcome: Outcome) -> State:
    """With every current pod that is there known by its UID."""
    counted = [pod for pod in seen.pods if pod.key != PLAN or state.planning]
    there = {pod.key: pod.uid for pod in counted if state.attempts.get(pod.key) == pod.attempt}
    made = {host_of(pod): pod["metadata"]["uid"] for pod in outcome.pods}
    if state.finished or state.phase == Phase.SUSPENDED or state.round != seen.state.round:
        return state
    return replace(state, pods={**state.pods, **there, **made})


def _with_save(state: State, outcome: Outcome, now: float) -> State:
    """With the notices for which a save was asked for."""
    if not outcome.leaving:
        return state
    return replace(state, leaving={**state.leaving, **outcome.leaving}, save_asked_at=now)


def _with_outcome(state: State, outcome: Outcome, now: float) -> State:
    if not outcome.reason:
        return state
    state = replace(state, reason=outcome.reason, message=outcome.message[:_MAX_MESSAGE])
    kind = READY if outcome.reason == NAME_CONFLICT else SCHEDULED
    return state.saying(kind, FALSE, outcome.reason, outcome.message[:_MAX_MESSAGE], now=now)


def _kept(old: Mapping[str, Any]) -> dict[str, Any]:
    """What nobody says anew, and what a newer release has said: after a rollback it may come back, and need it."""
    return {name: old[name] for name in old if name in _OF_THE_RUN or name not in _KNOWN}


def _of_the_run(seen: Observed, old: Mapping[str, Any]) -> dict[str, Any]:
    """What the run says of itself: its last record if it has ended, else what host 0 has said."""
    record = last_record(seen)
    if record is not None:
        return _recorded(record, old)
    if seen.poll is None or seen.poll.status is None:
        return {}
    return _told(seen, seen.poll.status, old, seen.poll.heard_at)


def _last_checkpoint(record: LastRecord, old: Mapping[str, Any]) -> dict[str, Any]:
    step = record.checkpoint_step
    return {} if step in (None, old.get("checkpoint", {}).get("step")) else {"checkpoint": {"step": step}}


def _recorded(record: LastRecord, old: Mapping[str, Any]) -> dict[str, Any]:
    loss = None if record.loss is None else _text(float(record.loss), ".4f")
    progress = {"step": record.step, "of": record.steps, "loss": loss}
    return {
        "progress": {name: value for name, value in progress.items() if value is not None},
        **_last_checkpoint(record, old),
        **({"digest": record.digest} if record.digest else {}),
        **_goodput(record.goodput),
    }


def _told(seen: Observed, status: Mapping[str, Any], old: Mapping[str, Any], heard_at: float) -> dict[str, Any]:
    said, slowest = status.get("progress", {}), status.get("slowestHost")
    progress = {
        "step": said.get("step"),
        "of": said.get("of"),
        "loss": _text(said.get("loss"), ".4f"),
        "tokensPerSecond": _text(said.get("tokensPerSecond"), ".0f"),
        "mfu": _text(said.get("mfu"), ".1%"),
        "eta": _eta(said),
        "slowestHost": seen.hosts[slowest] if slowest is not None and slowest < len(seen.hosts) else None,
        "observedAt": timestamp(heard_at),
    }
    told = {"progress": _new_or_old({name: value for name, value in progress.items() if value is not None}, old)}
    return {**told, **_checkpoint(status, old, heard_at), **_goodput(status.get("goodput", {}))}


def _new_or_old(progress: dict[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """What was written before, where nothing but the time has moved on: that alone is worth no write."""
    before = old.get("progress", {})
    return before if before == {**progress, "observedAt": before.get("observedAt")} else progress


def _checkpoint(status: Mapping[str, Any], old: Mapping[str, Any], heard_at: float) -> dict[str, Any]:
    """The newest checkpoint, and when it was first heard of."""
    said, before = status.get("checkpoint"), old.get("checkpoint", {})
    if not said or said["step"] == before.get("step"):
        return {}
    seconds = {"seconds": _text(said["seconds"], ".2f")} if "seconds" in said else {}
    return {"checkpoint": {"step": said["step"], "time": timestamp(heard_at), **seconds}}


def _eta(said: Mapping[str, Any]) -> str | None:
    """The time that is left at the last step's speed, as 1h5m."""
    step, of, seconds = said.get("step"), said.get("of"), said.get("stepSeconds")
    if step is None or of is None or not seconds:
        return None
    minutes, rest = divmod(int((of - step) * seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m" if hours else f"{minutes}m{rest}s"


def _text(value: float | str | None, form: str) -> str | None:
    """A number as text; what is text already (a loss that is none) stays."""
    return value if value is None else (value if isinstance(value, str) else format(value, form))[:_MAX_FIGURE]


def _goodput(seconds: Mapping[str, float]) -> dict[str, str]:
    """The share of the wall time in which steps that count were taken."""
    total = sum(seconds.values())
    return {"goodput": format(seconds.get("step", 0.0) / total, ".0%")} if total else {}


def _restarts(seen: Observed, state: State, old: Mapping[str, Any]) -> dict[str, int]:
    """Every restart once: a loss of pods is also a lost host to the run's own count."""
    told, before = _told_restarts(seen), seen.state.losses
    if told is None:
        own = {cause: count - before.get(cause, 0) for cause, count in old.get("restarts", {}).items()}
    else:
        own = {**told, Cause.HOST_LOST: max(0, told.get(Cause.HOST_LOST, 0) - sum(state.losses.values()))}
    counts = {str(cause): own.get(cause, 0) + state.losses.get(cause, 0) for cause in sorted({*own, *state.losses})}
    return {cause: min(_MAX_COUNT, count) for cause, count in counts.items() if count}


def _told_restarts(seen: Observed) -> Mapping[str, int] | None:
    record = last_record(seen)
    if record is not None:
        return record.restarts
    return seen.poll.status.get("restarts") if seen.poll and seen.poll.status else None


def _hosts(seen: Observed, state: State, old: Mapping[str, Any]) -> dict[str, Any]:
    alive = [pod for pod in seen.pods if pod.key != PLAN and not pod.ended]
    ready = sum(pod.ready for pod in alive if state.pods.get(pod.key) == pod.uid)
    of = len(seen.hosts) if seen.made_of else old.get("hosts", {}).get("of", 0)  # of a finished job nobody looks
    return {"ready": ready, "of": of, "summary": f"{ready}/{of}"}
