"""What an agent reports to the leader about its host: the trainer, how far it is, and how it ended."""

from signal import SIGTERM, Signals

from shardwise.protocol.contract import ExitCode, Phase, Progress
from shardwise.protocol.message import Message


class Exit(Message):
    """How a trainer ended: by `code`, or by `signal`.

    `asked` is true if its agent ended it: then it explains nothing. `out_of_memory` is true if the kernel ended a
    process of the host for lack of memory meanwhile. `log_tail` are the last lines of its log.
    """

    attempt: int
    code: int | None
    signal: int | None
    asked: bool
    out_of_memory: bool
    log_tail: str

    @property
    def saved(self) -> bool:
        """Return whether it stopped as it was asked to; one without a handler yet had nothing to save."""
        return self.code == ExitCode.SAVED or self.signal == SIGTERM

    @property
    def bad(self) -> bool:
        """Return whether it ended by itself, and should not have."""
        return not (self.asked or self.saved or self.code == ExitCode.OK)

    @property
    def message(self) -> str:
        """Return the exit code, or the signal's name, for people."""
        if self.signal is None:
            return f"exit code {self.code}"
        known = self.signal in Signals.__members__.values()
        return f"signal {Signals(self.signal).name if known else self.signal}"


class Report(Message):
    """One host at one moment.

    `version` grows whenever something changes that the leader acts on; it starts again with each agent, and no two
    agents have the same `agent_id`. `age_seconds` is the time since the progress record last changed, or since the
    orders before the first; of a program without one it is the time since its last work or output. `resting_seconds` is
    how long the trainer has hardly used a processor; `process_state` is the letter of /proc/PID/stat ("R", "S", "D",
    "T", ..., "" without a trainer). `standby` is true if another trainer has its imports done and waits for orders.
    """

    version: int
    host: int
    agent_id: str
    agent_pid: int
    trainer_pid: int | None
    attempt: int | None
    progress: Progress | None
    age_seconds: float
    resting_seconds: float
    process_state: str
    exit: Exit | None
    standby: bool
    stop_asked: bool

    @property
    def phase(self) -> Phase:
        """Return the trainer's phase; `start` before its first progress record."""
        return self.progress.phase if self.progress else Phase.START

    @property
    def joined(self) -> bool:
        """Return whether the trainer runs and has joined the others."""
        return self.trainer_pid is not None and self.phase not in (Phase.START, Phase.JOIN)

    @property
    def doing(self) -> str:
        """Return what a long phase of the trainer is at, for people; "" without a trainer."""
        return self.progress.doing if self.progress and self.trainer_pid else ""
