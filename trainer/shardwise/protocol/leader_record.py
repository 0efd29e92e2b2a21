"""DIR/logs/leader.json: what the next leader of a run must know after this one, its host or the command was killed.

The leader replaces the file by rename. The leader that follows reads it, and so does the command: which files to
remove, and whether the run has a result.
"""

import time
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import Field

from shardwise.protocol.contract import LEADER_RECORD, LOGS
from shardwise.protocol.files import replace_file
from shardwise.protocol.message import Message
from shardwise.protocol.run_status import CheckpointStatus
from shardwise.protocol.storage import passing_over


class RunResult(Message):
    """The exit code of the run (`ExitCode`), and a message for people.

    The other fields describe a bad end that no restart follows. `cause` is a `Cause`, None for a good end; `rank`,
    `exit` (how that rank's trainer ended) and `log_tail` (the end of its log) are empty if no single trainer explains
    the end.
    """

    code: int
    message: str
    cause: str | None = None
    rank: int | None = None
    exit: str | None = None
    log_tail: str = ""


class Used(Message):
    """What one command has used up since the last new checkpoint.

    `counts` are restarts by cause, `in_a_row` all of them; `committed` is the newest committed step at the last one.
    """

    counts: dict[str, int] = Field(default_factory=dict)
    in_a_row: int = 0
    committed: int = -1


class StepsTime(NamedTuple):
    """The seconds of the steps after `after`, up to `last`."""

    after: int
    last: int
    seconds: float


class MetricsRead(Message):
    """What the metrics of the command say up to their byte `offset`, where a line begins.

    `committed` is the newest step that was saved, `last` the record of the last step, `lost_seconds` the time of steps
    that a later attempt repeated; `steps_time` that of the others, in one sum up to the checkpoint and one since. `of`
    is how many steps a program says it has, `held_out_loss` that of the last evaluation.
    """

    offset: int
    committed: int
    checkpoint: CheckpointStatus | None
    last: dict[str, Any]
    lost_seconds: float
    steps_time: tuple[StepsTime, ...]
    of: int | None
    held_out_loss: float | None = None


class LeaderRecord(Message):
    """The state of a run's leader.

    `run` is the command's life that it belongs to; `restarts` count over the life of the run directory, `used` over
    that of the command. `fresh` is true until a checkpoint is committed under this command: until then, what the
    command line asked of the start (--fork, --step) still applies. `began_at` is the time of its first attempt, in
    seconds since the epoch. `led` is false once the leader has left in good order, `stop_asked` true once the run is to
    stop. `goodput` is the wall time up to `written_at` in seconds by category, with lost steps not yet told apart;
    `counters` is what Prometheus is given of it, which is never ahead of this record. `metrics_offset` is where the
    metrics of this command begin, and `metrics` what they said at the newest checkpoint. `session` counts Ray sessions.
    `result` is None until the run has ended.
    """

    run: str
    scratch: str
    leader_pid: int
    port: int
    started_at: float
    written_at: float = 0.0
    began_at: float | None = None
    attempt: int | None = None
    session: int = 0
    running: bool = False
    fresh: bool = True
    restarts: dict[str, int] = Field(default_factory=dict)
    used: Used = Used()
    goodput: dict[str, float] = Field(default_factory=dict)
    counters: dict[str, float] = Field(default_factory=dict)
    metrics_offset: int = 0
    metrics: MetricsRead | None = None
    phases: dict[str, float] = Field(default_factory=dict)
    led: bool = True
    stop_asked: bool = False
    result: RunResult | None = None

    @property
    def code(self) -> int | None:
        """The run's exit code; None until it has ended."""
        return self.result.code if self.result else None

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Read the record of a run directory; None before the first leader, and if the file holds something else.

        A loss of power may have cut it short.
        """
        try:
            return cls.loads((directory / LOGS / LEADER_RECORD).read_bytes())
        except FileNotFoundError:
            return None

    @classmethod
    def code_of(cls, directory: Path, run: str) -> int | None:
        """Read the exit code of a run; None until it has ended, and while the storage cannot be read.

        It is asked for again in a moment. A file server that has just replaced the record may refuse the old one.
        """
        with passing_over():
            record = cls.read(directory)
            return record.code if record and record.run == run else None
        return None

    def write(self, directory: Path) -> Self:
        """Replace the record by rename; return it as written.

        If the storage does not take it now, the one before stays: the leader writes every two seconds, and if it ended
        for that, its successor could not write either.
        """
        written = self.model_copy(update={"written_at": time.time()})
        with passing_over():
            replace_file(directory / LOGS / LEADER_RECORD, written.model_dump_json(indent=2) + "\n", durable=False)
        return written
