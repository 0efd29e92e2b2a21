"""The part of a job's status that decisions go by, as a typed value: what the operator must find again after a restart.

Times are in seconds since the epoch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from shardwise_operator.reasons import ADMITTED, FALSE, FEWER_SLICES, READY, STALLED, ConditionStatus


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
LONGEST_WAIT_SECONDS = 600.0
"""No policy has the next pods wait for longer than this."""


class Finding(StrEnum):
    """The verdict of a plan."""

    FITS = "Fits"
    NOT_FITTING = "NotFitting"
    UNKNOWN = "Unknown"  # the class does not give the memory of a device


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """The plan that comes before a round's pods.

    Attributes:
        of: what is planned, as a digest: what has fitted once is not planned again.
        finding: its verdict; None while it is made.
        lost: how many of its pods were lost.

    """

    of: str
    finding: Finding | None = None
    lost: int = 0


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition of a status; `since` is when its `status` last changed."""

    type: str
    status: ConditionStatus
    reason: str
    message: str
    since: float


@dataclass(frozen=True)
class Loss:
    """A loss of one slice: when it was charged, the numbers of the hosts whose pods it took, and why.

    One that an older release has charged has no cause.
    """

    at: float
    hosts: frozenset[int]
    cause: str = ""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How far a round with fewer slices is with taking in those that are back.

    Attributes:
        asked_at: when it was decided that the run saves and stops for it; None if it was not.
        begun: whether the round has slices that were taken in, and its pods have not all run yet.
        in_vain: how often in a row slices were asked for or taken in that the run could not use.
        not_before: no places are held for slices before this time.

    """

    asked_at: float | None = None
    begun: bool = False
    in_vain: int = 0
    not_before: float | None = None


@dataclass(frozen=True, kw_only=True)
class State:
    """How far a job has come.

    Attributes:
        phase: what it is doing.
        reason: why, as one CamelCase word.
        message: why, for people.
        round: the number of the round, the life of a job from one start of all its pods to the next; None before the
            first.
        slices: how many slices the round has, of a job that asks for more; None if it has all.
        growth: how slices that were left out are taken in again.
        sealed_round: the last round whose snapshot has this operator's seal; one that an older release began has none.
        preflight: the plan that comes before the round's pods; None without one.
        attempts: by host ("<slice>-<host>"), the number of its current pod. It counts up before a pod is created.
            The plan's pod has its own, under "plan".
        pods: by host, the UID of its current pod, once that is created; that of the plan until its verdict.
        charged: the losses since a newer checkpoint, or since the last start or resume, by cause.
        charged_step: the step of the newest checkpoint at the last of them; None without one.
        last_loss: by slice, what it lost with its last charge and soon after.
        losses: the same as `charged` in the whole life of the job.
        lost_at: where pods were lost, and where their successors may still go: the node by host, the place by slice.
        avoid: where that happened twice in a row, by host or slice: the next pod goes elsewhere.
        leaving: by host, the node whose end was announced, and for which host 0 has agreed to save.
        save_asked_at: when host 0 last agreed to.
        image: the image of this round by its digest; "" while no pod has reported it, or if it has none.
        started_at: when the round began.
        ran_at: when all of its pods ran for the first time; None before.
        completed_at: when the job finished.
        not_before: no pod is created before this time.
        stop_asked_at: when host 0 was first asked to save and stop; None if it was not.
        conditions: the conditions.

    """

    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    round: int | None = None
    slices: int | None = None
    growth: Growth = Growth()
    sealed_round: int | None = None
    preflight: Preflight | None = None
    attempts: Mapping[str, int] = field(default_factory=dict)
    pods: Mapping[str, str] = field(default_factory=dict)
    charged: Mapping[str, int] = field(default_factory=dict)
    charged_step: int | None = None
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
        """Whether the job is Complete or Failed."""
        return self.phase in FINISHED

    @property
    def planning(self) -> bool:
        """Whether a plan is being made, and nothing else."""
        return self.preflight is not None and self.preflight.finding is None

    @property
    def cleared(self) -> bool:
        """Whether the pods of the hosts may be created: no plan is asked for, or it does not rule them out."""
        return self.preflight is None or self.preflight.finding in (Finding.FITS, Finding.UNKNOWN)

    def by_clock(self, now: float) -> "State":
        """Return the state as the clock of this operator has it, since that of one before it may have been ahead.

        What was asked for or lost is past by now, and pods wait no longer than any policy has them wait.
        """
        saved, stopped, not_before = self.save_asked_at, self.stop_asked_at, self.not_before
        return replace(
            self,
            save_asked_at=None if saved is None else min(saved, now),
            stop_asked_at=None if stopped is None else min(stopped, now),
            not_before=None if not_before is None else min(not_before, now + LONGEST_WAIT_SECONDS),
            last_loss={slice_: replace(loss, at=min(loss.at, now)) for slice_, loss in self.last_loss.items()},
        )

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of this type, None without one."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def with_condition(self, kind: str, status: ConditionStatus, reason: str, message: str, *, now: float) -> "State":
        """Return the state with one condition set; its time stays if its status does."""
        conditions = {condition.type: condition for condition in self.conditions}
        before = conditions.get(kind)
        since = before.since if before and before.status == status else now
        conditions[kind] = Condition(type=kind, status=status, reason=reason, message=message, since=since)
        return replace(self, conditions=tuple(conditions.values()))

    def without_condition(self, kind: str) -> "State":
        """Return the state without the condition of this type."""
        return replace(self, conditions=tuple(each for each in self.conditions if each.type != kind))

    def renewed(self, hosts: Iterable[str]) -> "State":
        """Return the state in which these hosts get another pod: each the next number, which no pod has had."""
        numbers = {host: self.attempts[host] + 1 if host in self.attempts else 0 for host in hosts}
        pods = {host: uid for host, uid in self.pods.items() if host not in numbers}
        return replace(self, attempts={**self.attempts, **numbers}, pods=pods)

    def at(self, phase: Phase, ready: ConditionStatus, reason: str, message: str, *, now: float) -> "State":
        """Return the state in a phase, for a reason that the condition Ready has too."""
        state = replace(self, phase=phase, reason=reason, message=message)
        return state.with_condition(READY, ready, reason, message, now=now)

    def at_rest(self, reason: str, *, now: float) -> "State":
        """Return the state with conditions that say that nothing runs any more, whatever host 0 last reported."""
        state = self.with_condition(READY, FALSE, reason, "", now=now)
        for kind in (STALLED, ADMITTED, FEWER_SLICES):
            state = state.with_condition(kind, FALSE, reason, "", now=now) if state.condition(kind) else state
        return state
