"""What a page says, as data: the types of the document that is written into it. Times are in seconds since the epoch.

None, an empty list and an empty text mean that the run has not recorded it. A loss that was no number is NaN.
"""

from typing import Annotated

from pydantic import AfterValidator, Field

from shardwise.protocol.message import Message
from shardwise.protocol.text import writable

# A directory, or what a process has said, may have bytes that are no UTF-8.
_Text = Annotated[str, AfterValidator(writable)]


class Series(Message):
    """One number over the steps, thinned: `count` is how many steps have it."""

    name: _Text
    steps: list[int]
    values: list[float]
    count: int


class HostTimes(Message):
    """One host in one attempt: its last step, a fixed piece of work of its own, and seconds by phase."""

    host: int
    step: int
    step_seconds: float
    own_seconds: float | None = None
    phases: dict[str, float] = Field(default_factory=dict)


class AttemptTimes(Message):
    """One start of all trainers.

    `began` is when they had their orders, `running` when their first step was complete, `ended` when they had ended.
    `last` is the last time at which anything is known of it. `cause`, `rank` and `exit` are of a bad end; `message` is
    how it ended. `hosts_left_out` counts hosts that are too many to show.
    """

    number: int
    began: float
    last: float
    running: float | None = None
    from_step: int | None = None
    ended: float | None = None
    cause: _Text | None = None
    rank: int | None = None
    exit: _Text | None = None
    message: _Text = ""
    hosts: list[HostTimes] = Field(default_factory=list)
    hosts_left_out: int = 0


class Notice(Message):
    """Something else that happened, at a time or at a step, and what is known of it."""

    event: _Text
    time: float | None = None
    step: int | None = None
    text: _Text = ""


class SlowHost(Message):
    """A host that was named as slow, and why."""

    host: int
    time: float | None = None
    message: _Text = ""


class Save(Message):
    """A checkpoint that was committed. `kept` is whether it is still there, None if that could not be found out."""

    step: int
    saved_at: float | None = None
    blocked_seconds: float | None = None
    durable_seconds: float | None = None
    digest: _Text = ""
    kept: bool | None = None


class Evaluation(Message):
    """When an evaluation after a step was over, and how long it took."""

    step: int
    evaluated_at: float
    evaluation_seconds: float


class MemoryRow(Message):
    """What each of `count` devices that are alike holds, in bytes; `devices` names the first of them."""

    devices: _Text
    count: int
    params_bytes: int
    optimizer_bytes: int
    batch_bytes: int
    temporary_bytes: int


class LogTail(Message):
    """The end of the log of one trainer; `size` is that of the whole file, in bytes."""

    attempt: int
    host: int
    size: int
    text: _Text


class PageDocument(Message):
    """All of a page.

    `status` is as `shardwise status` names it, `live` whether a process holds the run. `program` is whether it is
    of an own program, `others` name what that reports beside what a trainer does. `began` is when the first of all
    attempts did. `resumed` are the steps from which trainers have continued. `goodput` is wall time by category,
    and `goodput_of` says of what. `saves_left_out`, `notices_left_out` and `logs_left_out` count what is too much
    to show.
    """

    name: _Text
    directory: _Text
    made_at: float
    status: _Text
    live: bool
    program: bool = False
    phase: _Text | None = None
    reason: _Text = ""
    error: _Text = ""
    step: int
    num_steps: int | None = None
    eta_seconds: float | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    held_out_loss: float | None = None
    set_losses: dict[str, float] = Field(default_factory=dict)
    set_answered: dict[str, float] = Field(default_factory=dict)
    set_rewards: dict[str, float] = Field(default_factory=dict)
    began: float | None = None
    attempts_made: int = 0
    restarts: dict[str, int] = Field(default_factory=dict)
    entropy: dict[str, float] = Field(default_factory=dict)
    series: list[Series] = Field(default_factory=list)
    others: list[str] = Field(default_factory=list)
    resumed: list[int] = Field(default_factory=list)
    goodput: dict[str, float] = Field(default_factory=dict)
    goodput_of: _Text = ""
    attempts: list[AttemptTimes] = Field(default_factory=list)
    slow: list[SlowHost] = Field(default_factory=list)
    notices: list[Notice] = Field(default_factory=list)
    notices_left_out: int = 0
    checkpoint_root: _Text = ""
    evaluations: list[Evaluation] = Field(default_factory=list)
    saves: list[Save] = Field(default_factory=list)
    saves_left_out: int = 0
    mesh: dict[str, int] = Field(default_factory=dict)
    devices: int | None = None
    memory: list[MemoryRow] = Field(default_factory=list)
    logs: list[LogTail] = Field(default_factory=list)
    logs_left_out: int = 0
    digest: _Text = ""
