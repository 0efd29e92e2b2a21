"""What an agent tells the leader about its host: the trainer, how far it is, and how it ended.

Made by `host.py`, carried as JSON by hands, read by the leader and its policies.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from signal import SIGTERM, Signals
from typing import Any

from shardwise.job.contract import ExitCode, Phase, Progress
from shardwise.launcher.wire import camel, snake


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a trainer ended: by `code`, or by `signal`.

    `asked` says that its agent ended it, so it explains nothing. `out_of_memory`: the kernel ended a process of the
    host for lack of memory meanwhile. `log_tail` are the last lines of its log.
    """

    incarnation: int
    code: int | None
    signal: int | None
    asked: bool
    out_of_memory: bool
    log_tail: str

    @property
    def saved(self) -> bool:
        """Whether it stopped as a stop asks; one that had no handler yet had nothing to save."""
        return self.code == ExitCode.SAVED or self.signal == SIGTERM

    @property
    def bad(self) -> bool:
        """Whether it ended by itself, and should not have."""
        return not (self.asked or self.saved or self.code == ExitCode.OK)

    @property
    def words(self) -> str:
        """The exit code, or the signal's name."""
        if self.signal is None:
            return f"exit code {self.code}"
        known = self.signal in Signals.__members__.values()
        return f"signal {Signals(self.signal).name if known else self.signal}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """One host at one moment.

    `version` grows whenever something of weight has changed; it starts again with the agent, whose `agent_id` is its
    own for ever. `age_seconds` is how long ago the progress record last changed, or since the orders where there is
    none yet; `resting_seconds` for how long the trainer has hardly used a processor; `process_state` is the letter of
    /proc/PID/stat ("R", "S", "D", "T", ..., "" without a trainer). `standby` says that another trainer has its imports
    done and waits for orders.
    """

    version: int
    host: int
    agent_id: str
    agent_pid: int
    trainer_pid: int | None
    incarnation: int | None
    progress: Progress | None
    age_seconds: float
    resting_seconds: float
    process_state: str
    exit: Exit | None
    standby: bool
    stop_asked: bool

    @property
    def phase(self) -> Phase:
        """The trainer's phase; starting where it has not said anything yet."""
        return self.progress.phase if self.progress else Phase.START

    def as_json(self) -> dict[str, Any]:
        """The report as hands carry it; the progress record keeps the names of its file."""
        return camel(self) | {"progress": asdict(self.progress) if self.progress else None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Report":
        """The inverse of `as_json`."""
        fields = snake(data)
        progress, ended = fields["progress"], fields["exit"]
        return cls(
            **{
                **fields,
                "progress": Progress(**{**progress, "phase": Phase(progress["phase"])}) if progress else None,
                "exit": Exit(**snake(ended)) if ended else None,
            }
        )
