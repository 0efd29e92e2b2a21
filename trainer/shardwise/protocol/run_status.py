"""The status of a run, as the leader serves it at `/status`, and the command, the operator and people read it.

What the operator reads is bounded, for a job chooses what answers at its address: the CRD would refuse a status that
passes these bounds, and metrics have few labels.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, Field

from shardwise.protocol.contract import Phase
from shardwise.protocol.message import Count, Message, Seconds, ShortText
from shardwise.protocol.report import Report

GOODPUT_CATEGORIES = ("start", "compile", "restore", "step", "lostSteps", "save", "wait", "recovery", "other")
"""Where the wall time of a run goes; `shardwise.launcher.leader.goodput` says what each is."""
WELL_SPENT = "step"
"""The category of the steps that count."""

_MOST_TEXT = 4096

_Text = Annotated[str, AfterValidator(lambda text: text[:_MOST_TEXT])]
_Figure = float | ShortText | None  # a loss that is no number may come as text
_Left = Annotated[float, Field(ge=0.0, le=1e22, allow_inf_nan=False)]  # any count of steps, of any bounded seconds


class RunPhase(StrEnum):
    """What the run as a whole is doing."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STALLED = "stalled"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    DONE = "done"


class RunProgress(Message):
    """The last step's figures: `step` is the last completed one of `of`, `mfu` a share of the devices' peak.

    `held_out_loss` is that of the last evaluation.
    """

    step: Count | None = None
    of: Count | None = None
    loss: _Figure = None
    held_out_loss: _Figure = None
    grad_norm: _Figure = None
    tokens_per_second: _Figure = None
    mfu: _Figure = None
    step_seconds: Seconds | None = None
    eta_seconds: _Left | None = None


class CheckpointStatus(Message):
    """The newest checkpoint: when it was complete (seconds since the epoch), and the seconds that the save took.

    A checkpoint of an earlier run that this one was restored from has no `seconds`, an old one no `saved_at` either.
    """

    step: Count
    saved_at: float | None = None
    seconds: Seconds | None = None
    age_seconds: float | None = None


class FailedSaves(Message):
    """The saves that have failed since the newest checkpoint, and why the last one did."""

    in_a_row: Count
    reason: _Text


class StuckHost(Message):
    """A host that can start no trainer; `address` is the host's.

    Its last one survives SIGKILL, which `message` names, or its devices have failed in several attempts.
    """

    host: int
    address: ShortText
    message: _Text


class HostStatus(Message):
    """One host.

    `phase` is None if it has no trainer; `step_seconds` is the last step's time, and `own_seconds` the time of a fixed
    piece of work that waits for no other host, None before it is measured. `age_seconds` is the age of the trainer's
    progress; `state` is the letter of its process in /proc/PID/stat. `standby` says that another trainer has its
    imports done. `doing` is what a long phase is at, for people. `phases` is the trainer's time in seconds by phase.
    """

    host: int
    agent_pid: int
    trainer_pid: int | None
    phase: Phase | None
    step: int
    step_seconds: float
    own_seconds: float | None
    age_seconds: float
    state: str
    standby: bool
    doing: _Text = ""
    phases: dict[str, float]

    @classmethod
    def of(cls, report: Report) -> Self:
        """Return the status of a host from its report."""
        progress = report.progress
        return cls(
            host=report.host,
            agent_pid=report.agent_pid,
            trainer_pid=report.trainer_pid,
            phase=report.phase if report.trainer_pid else None,
            step=progress.step if progress else 0,
            step_seconds=progress.each_seconds if progress else 0.0,
            own_seconds=progress.own_seconds if progress and progress.measured else None,
            age_seconds=round(report.age_seconds, 3),
            state=report.process_state,
            standby=report.standby,
            doing=report.doing,
            phases={name: round(seconds, 4) for name, seconds in progress.seconds.items()} if progress else {},
        )


class RunSummary(Message):
    """The run as a whole: what the operator reads of a status, which leaves out the hosts.

    `phase` is a `RunPhase`, or one that a newer release has added; `attempt` counts the starts of the trainers, from 0.
    `restarts` counts by cause, `goodput` is the wall time in seconds by category. `joined` counts the hosts whose
    trainer has joined the others, or whose program runs; a leader of an older release does not tell it.
    """

    phase: Annotated[str, Field(pattern=r"^[A-Za-z]{1,32}$")]
    reason: _Text = ""
    attempt: Count | None = None
    restarts: Annotated[dict[ShortText, Count], Field(max_length=16)] = Field(default_factory=dict)
    joined: Count | None = None
    slowest_host: Count | None = None
    progress: RunProgress = RunProgress()
    checkpoint: CheckpointStatus | None = None
    failed_saves: FailedSaves | None = None
    goodput: Annotated[dict[ShortText, Seconds], Field(max_length=32)] = Field(default_factory=dict)
    stuck: tuple[StuckHost, ...] = ()


class RunStatus(RunSummary):
    """All of `/status`: `ray_session` counts the Ray sessions from 1, `missing` are the hosts that are not heard.

    `local_step` is that of the local checkpoint that the hosts hold, None if the trainers of now have made none.
    """

    name: str
    ray_session: int
    hosts: tuple[HostStatus, ...]
    missing: tuple[int, ...] = ()
    local_step: Count | None = None


def goodput_share(seconds: Mapping[str, float]) -> float | None:
    """Return the share of the wall time, given in seconds by category, in which steps that count were taken.

    It is None before there is any time.
    """
    total = sum(seconds.values())
    return seconds.get(WELL_SPENT, 0.0) / total if total else None
