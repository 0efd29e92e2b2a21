"""What the operator has to find again after a restart, as a typed value: the part of a job's status that it decides by.

Read from the status by `observe.py`, changed by the policies, written back by `status.py`. Times are in seconds since
the epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from shardwise_operator.words import FALSE, READY, STALLED


class Phase(StrEnum):
    """What a job as a whole is doing."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


FINISHED = (Phase.COMPLETE, Phase.FAILED)


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition of a status; `since` is when its `status` last changed."""

    type: str
    status: str
    reason: str
    message: str
    since: float


@dataclass(frozen=True, kw_only=True)
class State:
    """How far a job has come.

    Attributes:
        phase: what it is doing.
        reason: why, in one word.
        message: why, for a person.
        round: how often it was resumed; None before the first start.
        attempts: by host ("<slice>-<host>"), the number of its current pod. A number counts up before its pod is made.
        pods: by host, the UID of its current pod, once that is made.
        charged: the pods that were replaced in this round, by cause.
        lost_at: where pods were lost and their successors may be now: the node by host, the place by slice.
        avoid: where that happened twice running, by host or slice: the next pod goes elsewhere.
        leaving: by host, the node whose end was announced, and for which a save was asked for.
        save_asked_at: when that was last asked for.
        image: the image of this round by its digest; "" while nobody knows it, or where it has none.
        started_at: when the round began.
        completed_at: when the job finished.
        not_before: no pod is made before this.
        stop_asked_at: when a save and a stop were first asked for; None while nobody asks.
        conditions: as they were last written.

    """

    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    round: int | None = None
    attempts: Mapping[str, int] = field(default_factory=dict)
    pods: Mapping[str, str] = field(default_factory=dict)
    charged: Mapping[str, int] = field(default_factory=dict)
    lost_at: Mapping[str, str] = field(default_factory=dict)
    avoid: Mapping[str, str] = field(default_factory=dict)
    leaving: Mapping[str, str] = field(default_factory=dict)
    save_asked_at: float | None = None
    image: str = ""
    started_at: float | None = None
    completed_at: float | None = None
    not_before: float | None = None
    stop_asked_at: float | None = None
    conditions: tuple[Condition, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether nothing follows."""
        return self.phase in FINISHED

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def saying(self, kind: str, status: str, reason: str, message: str, *, now: float) -> "State":
        """The same with one condition set; its time stays where its status does."""
        before = self.condition(kind)
        since = before.since if before and before.status == status else now
        said = Condition(type=kind, status=status, reason=reason, message=message, since=since)
        if before is None:
            return replace(self, conditions=(*self.conditions, said))
        return replace(self, conditions=tuple(said if one is before else one for one in self.conditions))

    def at_rest(self, reason: str, *, now: float) -> "State":
        """The same with nothing running any more, whatever host 0 said last."""
        state = self.saying(READY, FALSE, reason, "", now=now)
        return state.saying(STALLED, FALSE, reason, "", now=now) if state.condition(STALLED) else state


def read_state(status: Mapping[str, Any]) -> State:
    """The state in a status; that of a new job in an empty one."""
    return State(
        phase=Phase(status.get("phase") or Phase.PENDING),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        round=status.get("round"),
        attempts=status.get("attempts", {}),
        pods=status.get("pods", {}),
        charged=status.get("charged", {}),
        lost_at=status.get("lostAt", {}),
        avoid=status.get("avoid", {}),
        leaving=status.get("leaving", {}),
        save_asked_at=seconds_of(status.get("saveTime")),
        image=status.get("image", ""),
        started_at=seconds_of(status.get("startTime")),
        completed_at=seconds_of(status.get("completionTime")),
        not_before=seconds_of(status.get("notBefore")),
        stop_asked_at=seconds_of(status.get("stopTime")),
        conditions=tuple(_condition(condition) for condition in status.get("conditions", [])),
    )


def write_state(state: State, generation: int) -> dict[str, Any]:
    """The inverse of `read_state`, without fields that hold nothing; `generation` is the one that was looked at."""
    fields = {
        "phase": str(state.phase),
        "reason": state.reason,
        "message": state.message,
        "round": state.round,
        "attempts": dict(state.attempts),
        "pods": dict(state.pods),
        "charged": dict(state.charged),
        "lostAt": dict(state.lost_at),
        "avoid": dict(state.avoid),
        "leaving": dict(state.leaving),
        "saveTime": timestamp(state.save_asked_at),
        "image": state.image,
        "startTime": timestamp(state.started_at),
        "completionTime": timestamp(state.completed_at),
        "notBefore": timestamp(state.not_before),
        "stopTime": timestamp(state.stop_asked_at),
        "conditions": [_written(condition, generation) for condition in state.conditions],
        "observedGeneration": generation,
    }
    return {name: value for name, value in fields.items() if value not in (None, "", {}, [])}


def timestamp(seconds: float | None) -> str | None:
    """A time as Kubernetes writes it, to the second."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str | None) -> float | None:
    """The inverse of `timestamp`; takes fractions of a second too."""
    return None if text is None else datetime.fromisoformat(text).timestamp()


def _condition(written: Mapping[str, Any]) -> Condition:
    since = seconds_of(written["lastTransitionTime"])
    assert since is not None
    return Condition(
        type=written["type"],
        status=written["status"],
        reason=written.get("reason", ""),
        message=written.get("message", ""),
        since=since,
    )


def _written(condition: Condition, generation: int) -> dict[str, Any]:
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": timestamp(condition.since),
        "observedGeneration": generation,
    }
