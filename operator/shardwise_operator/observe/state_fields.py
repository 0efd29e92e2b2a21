"""A state as fields of a job's status: `write_state` is the inverse of `read_state`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic.alias_generators import to_camel

from shardwise_operator.observe.state import Condition, Finding, Growth, Loss, Phase, Preflight, State
from shardwise_operator.runtime.kinds import seconds_of, timestamp

# The attributes of a state that are in a status as they are, and those that are times there, with their fields.
_PLAIN = {
    name: to_camel(name)
    for name in (
        *("reason", "message", "round", "slices", "sealed_round", "attempts", "pods", "charged", "charged_step"),
        *("losses", "lost_at", "avoid", "leaving", "image"),
    )
}
_TIMES = {
    "save_asked_at": "saveTime",
    "started_at": "startTime",
    "ran_at": "runTime",
    "completed_at": "completionTime",
    "not_before": "notBefore",
    "stop_asked_at": "stopTime",
}


def read_state(status: Mapping[str, Any]) -> State:
    """Read the state from a status; an empty status has that of a new job."""
    fields: dict[str, Any] = {
        "losses": status.get("charged", {}),  # the first releases have not counted them
        **{name: status[written] for name, written in _PLAIN.items() if written in status},
        **{name: seconds_of(status[written]) for name, written in _TIMES.items() if written in status},
    }
    return State(
        **fields,
        phase=_phase(status.get("phase", ""), status.get("round")),
        preflight=_preflight(status.get("preflight")),
        growth=_growth(status.get("growth", {})),
        last_loss={
            slice_: Loss(seconds_of(written["time"]), frozenset(written["hosts"]), written.get("cause", ""))
            for slice_, written in status.get("lastLoss", {}).items()
        },
        conditions=tuple(_condition(condition) for condition in status.get("conditions", [])),
    )


def write_state(state: State, generation: int) -> dict[str, Any]:
    """Return the fields of a status that hold something; `generation` is that of the spec that was looked at.

    It is the inverse of `read_state`.
    """
    # No model: validating the maps of thousands of hosts would take milliseconds of each pass, and the API server does
    # it anyway.
    fields = {
        "phase": state.phase.value,
        **{written: getattr(state, name) for name, written in _PLAIN.items()},
        **{written: timestamp(at) for name, written in _TIMES.items() if (at := getattr(state, name)) is not None},
        "preflight": _preflight_written(state.preflight),
        "growth": _growth_written(state.growth),
        "lastLoss": {slice_: _loss_written(loss) for slice_, loss in state.last_loss.items()},
        "conditions": [_condition_written(condition, generation) for condition in state.conditions],
        "observedGeneration": generation,
    }
    return {name: value for name, value in fields.items() if value not in (None, "", {}, [])}


def _loss_written(loss: Loss) -> dict[str, Any]:
    written = {"time": timestamp(loss.at), "hosts": sorted(loss.hosts)}
    return {**written, "cause": loss.cause} if loss.cause else written


def _phase(written: str, number: int | None) -> Phase:
    """Read a phase; one of a newer release counts as under way, and this pass reports the true one anyway."""
    if written in list(Phase):
        return Phase(written)
    return Phase.PENDING if number is None else Phase.RECOVERING


def _preflight(written: Mapping[str, Any] | None) -> Preflight | None:
    if written is None:
        return None
    finding = written.get("finding")
    return Preflight(of=written["of"], finding=Finding(finding) if finding else None, lost=written.get("lost", 0))


def _preflight_written(preflight: Preflight | None) -> dict[str, Any]:
    fields = asdict(preflight) if preflight else {}
    return {name: value for name, value in fields.items() if value is not None}


def _growth(written: Mapping[str, Any]) -> Growth:
    asked, not_before = (written.get(name) for name in ("askTime", "notBefore"))
    return Growth(
        asked_at=None if asked is None else seconds_of(asked),
        begun=written.get("begun", False),
        in_vain=written.get("inVain", 0),
        not_before=None if not_before is None else seconds_of(not_before),
    )


def _growth_written(growth: Growth) -> dict[str, Any]:
    times = {"askTime": growth.asked_at, "notBefore": growth.not_before}
    counted = {"begun": growth.begun, "inVain": growth.in_vain}
    written = {name: timestamp(at) for name, at in times.items() if at is not None}
    return {**written, **{name: value for name, value in counted.items() if value}}


def _condition(written: Mapping[str, Any]) -> Condition:
    return Condition(
        type=written["type"],
        status=written["status"],
        reason=written.get("reason", ""),
        message=written.get("message", ""),
        since=seconds_of(written["lastTransitionTime"]),
    )


def _condition_written(condition: Condition, generation: int) -> dict[str, Any]:
    fields = asdict(condition)
    since = fields.pop("since")
    return {**fields, "lastTransitionTime": timestamp(since), "observedGeneration": generation}
