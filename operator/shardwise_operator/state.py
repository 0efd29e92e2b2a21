"""What the operator has to find again after a restart, as a typed value: the part of a job's status that it decides by.

Read from the status by `observe.py`, changed by the policies, written back by `status.py`. Times are in seconds since
the epoch.
"""

from collections.abc import Iterable, Mapping
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


class Finding(StrEnum):
    """What a plan has found."""

    FITS = "Fits"
    NOT_FITTING = "NotFitting"
    UNKNOWN = "Unknown"  # the class does not say how much memory there is


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """The plan that comes before a round's pods.

    Attributes:
        of: what is planned, as a digest: what fits once is not planned again.
        finding: what came of it; None while it is made.
        lost: how many of its pods were lost.

    """

    of: str
    finding: Finding | None = None
    lost: int = 0


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition of a status; `since` is when its `status` last changed."""

    type: str
    status: str
    reason: str
    message: str
    since: float


@dataclass(frozen=True)
class Loss:
    """What a slice has lost at once: when it was charged, and the numbers of its hosts whose pods it took."""

    at: float
    hosts: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class State:
    """How far a job has come.

    Attributes:
        phase: what it is doing.
        reason: why, in one word.
        message: why, for a person.
        round: how often it was resumed; None before the first start.
        preflight: the plan that comes before the round's pods; None where none is asked for.
        attempts: by host ("<slice>-<host>"), the number of its current pod. A number counts up before its pod is made.
            The plan's pod has its own, under "plan".
        pods: by host, the UID of its current pod, once that is made; that of the plan as long as it has not ended.
        charged: the losses of this round since a newer checkpoint, by cause.
        charged_step: the newest checkpoint's step at the last of them; -1 without one.
        last_loss: by slice, what it lost with its last charge and soon after.
        losses: the same as `charged` in the whole life of the job.
        lost_at: where pods were lost and their successors may be now: the node by host, the place by slice.
        avoid: where that happened twice running, by host or slice: the next pod goes elsewhere.
        leaving: by host, the node whose end was announced, and for which a save was asked for.
        save_asked_at: when that was last asked for.
        image: the image of this round by its digest; "" while nobody knows it, or where it has none.
        started_at: when the round began.
        ran_at: when all of its pods ran for the first time; None before.
        completed_at: when the job finished.
        not_before: no pod is made before this.
        stop_asked_at: when a save and a stop were first asked for; None while nobody asks.
        conditions: as they were last written.

    """

    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    round: int | None = None
    preflight: Preflight | None = None
    attempts: Mapping[str, int] = field(default_factory=dict)
    pods: Mapping[str, str] = field(default_factory=dict)
    charged: Mapping[str, int] = field(default_factory=dict)
    charged_step: int = -1
    last_loss: Mapping[str, Loss] = field(default_factory=dict)
    losses: Mapping[str, int] = field(default_factory=dict)
    lost_at: Mapping[str, str] = field(default_factory=dict)
    avoid: Mapping[str, str] = field(default_factory=dict)
    leaving: Mapping[str, str] = field(default_factory=dict)
    save_asked_at: float | None = None
    image: str = ""
    started_at: float | None = None
    ran_at: float | None = None
    completed_at: float | None = None
    not_before: float | None = None
    stop_asked_at: float | None = None
    conditions: tuple[Condition, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether nothing follows."""
        return self.phase in FINISHED

    @property
    def planning(self) -> bool:
        """Whether a plan is being made, and nothing else."""
        return self.preflight is not None and self.preflight.finding is None

    @property
    def cleared(self) -> bool:
        """Whether no plan stands before the pods of the hosts."""
        return self.preflight is None or self.preflight.finding in (Finding.FITS, Finding.UNKNOWN)

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


def next_attempts(attempts: Mapping[str, int], hosts: Iterable[str]) -> dict[str, int]:
    """Each of `hosts` with a number that no pod of it has had; the others as they were."""
    return {**attempts, **{host: attempts[host] + 1 if host in attempts else 0 for host in hosts}}


def read_state(status: Mapping[str, Any]) -> State:
    """The state in a status; that of a new job in an empty one."""
    return State(
        phase=_phase(status.get("phase", ""), status.get("round")),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        round=status.get("round"),
        preflight=_preflight(status.get("preflight")),
        attempts=status.get("attempts", {}),
        pods=status.get("pods", {}),
        charged=status.get("charged", {}),
        charged_step=status.get("chargedStep", -1),
        last_loss={slice_: _loss(written) for slice_, written in status.get("lastLoss", {}).items()},
        losses=status.get("losses", status.get("charged", {})),  # there were none of the whole life at first
        lost_at=status.get("lostAt", {}),
        avoid=status.get("avoid", {}),
        leaving=status.get("leaving", {}),
        save_asked_at=seconds_of(status.get("saveTime")),
        image=status.get("image", ""),
        started_at=seconds_of(status.get("startTime")),
        ran_at=seconds_of(status.get("runTime")),
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
        "preflight": _preflight_written(state.preflight),
        "attempts": dict(state.attempts),
        "pods": dict(state.pods),
        "charged": dict(state.charged),
        "chargedStep": state.charged_step if state.charged_step >= 0 else None,
        "lastLoss": {
            slice_: {"time": timestamp(loss.at), "hosts": sorted(loss.hosts)}
            for slice_, loss in state.last_loss.items()
        },
        "losses": dict(state.losses),
        "lostAt": dict(state.lost_at),
        "avoid": dict(state.avoid),
        "leaving": dict(state.leaving),
        "saveTime": timestamp(state.save_asked_at),
        "image": state.image,
        "startTime": timestamp(state.started_at),
        "runTime": timestamp(state.ran_at),
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
    return None if text is None else _time(text)


def _phase(written: str, number: int | None) -> Phase:
    """One that a newer release has is a phase under way; how the job stands is seen anew in any case."""
    if written in list(Phase):
        return Phase(written)
    return Phase.PENDING if number is None else Phase.RECOVERING


def _preflight(written: Mapping[str, Any] | None) -> Preflight | None:
    if written is None:
        return None
    finding = written.get("finding")
    return Preflight(of=written["of"], finding=Finding(finding) if finding else None, lost=written.get("lost", 0))


def _preflight_written(preflight: Preflight | None) -> dict[str, Any] | None:
    if preflight is None:
        return None
    fields = {"of": preflight.of, "finding": preflight.finding and str(preflight.finding), "lost": preflight.lost}
    return {name: value for name, value in fields.items() if value}


def _time(written: str) -> float:
    return datetime.fromisoformat(written).timestamp()


def _loss(written: Mapping[str, Any]) -> Loss:
    return Loss(_time(written["time"]), frozenset(written["hosts"]))


def _condition(written: Mapping[str, Any]) -> Condition:
    return Condition(
        type=written["type"],
        status=written["status"],
        reason=written.get("reason", ""),
        message=written.get("message", ""),
        since=_time(written["lastTransitionTime"]),
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
