"""What the processes of one run agree on: exit codes, control signals, phases, file names, the progress record.

It starts nothing and decides nothing. It reads and writes the progress record, lists logs, and opens no other file.
"""

import re
from collections.abc import Iterable, Iterator
from enum import IntEnum, StrEnum
from pathlib import Path
from signal import SIGTERM
from stat import S_ISREG

from pydantic import Field

from shardwise.protocol.files import replace_file
from shardwise.protocol.message import Message

JOB_FILE = "job.yaml"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
LIVE_STATUSES = ("starting", "running")  # what a summary says of a run until its command has ended
CHECKPOINTS = "checkpoints"
LOGS = "logs"
PLOT = "loss.png"
PAGE = "page.html"
PROFILE = "profile"
LOCK = ".lock"
BUCKET_LEASE = ".lease"  # of a run directory in a bucket, in place of the lock
STATUS = "status.json"  # in the logs of a live run: where its leader listens
STATUS_TOKEN = "status-token"  # noqa: S105  a file, which that names: what its leader asks for
EVENTS = "launcher.jsonl"  # in the logs: the events of the run
LEADER_RECORD = "leader.json"  # in the logs: what the next leader must know
LEADER_ADDRESS = "leader"  # in the logs: where host 0 is
IDENTITY = "identity.json"  # in the logs: what the run is
PEAK = "peak.json"  # in the logs: the speed of its machine
FORKS = "forks.json"  # in the logs: how often the run went back by a fork
WENT_BACK = "went-back.json"  # in the logs: the step that the run was told to go back to, and has
LEFT_OUT = "left-out.json"  # in the logs: the batches that the run itself leaves out
RUN_ID = ".run-id"
COMMITTED = "COMMITTED"  # in a checkpoint's folder, written last: without it the checkpoint does not count

CACHE_VARIABLE = "SHARDWISE_CACHE"
# Where a process keeps its compiled programs, if not in the cache, and the file of the key that seals them. In a pod
# they lie on the job's volume, so that a pod that replaces another finds them.
PROGRAMS_VARIABLE = "SHARDWISE_PROGRAMS"
PROGRAMS_KEY_VARIABLE = "SHARDWISE_PROGRAMS_KEY_FILE"
PROGRAMS = "programs"  # their folder in the run directory, or in the cache

WORK_LIMIT_HANGS = 12
"""How many times `hangAfter` a trainer may work without progress before the first step, or wait for others to join."""

_PROGRESS_BYTES = 1 << 20  # far more than any record has
_ATTEMPT_NAME = re.compile(r"attempt-(\d+)")
_CHECKPOINT_NAME = re.compile(r"step-(\d{8,10})")


class ExitCode(IntEnum):
    """How a trainer process ended. Codes of our own start at 80: shells and signals use none from there to 125."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    SAVED = 80
    BAD_INPUT = 81
    NONFINITE = 82
    OUT_OF_MEMORY = 83
    STORAGE = 84
    DEVICE = 85
    PEER = 86
    HOSTS_MISSING = 87  # of a run in a cluster: the other hosts are given back, and it goes on when all can be had


HOST_LEFT = 128 + SIGTERM
"""The exit code of an agent whose host goes away: the run goes on, so it has no exit code yet."""


class Control(IntEnum):
    """What each process asks of a step; the largest value wins, so a stop beats a save."""

    NONE = 0
    MEASURE = 1
    SAVE = 2
    STOP = 3


class Cause(StrEnum):
    """Why an attempt ended badly. Each cause has its own budget of restarts; bad input has none."""

    FAILURE = "failure"
    NONFINITE = "nonfinite"
    HANG = "hang"
    OUT_OF_MEMORY = "outOfMemory"
    HOST_LOST = "hostLost"
    STORAGE = "storage"
    DEVICE = "device"
    BAD_INPUT = "badInput"

    @classmethod
    def of_exit(cls, code: int) -> "Cause":
        """Return the cause for a trainer's exit code; any code that is not in the table is a failure."""
        return _CAUSES.get(code, cls.FAILURE)


_CAUSES: dict[int, Cause] = {
    ExitCode.USAGE: Cause.BAD_INPUT,
    ExitCode.BAD_INPUT: Cause.BAD_INPUT,
    ExitCode.NONFINITE: Cause.NONFINITE,
    ExitCode.OUT_OF_MEMORY: Cause.OUT_OF_MEMORY,
    ExitCode.STORAGE: Cause.STORAGE,
    ExitCode.DEVICE: Cause.DEVICE,
    ExitCode.PEER: Cause.DEVICE,  # if no peer explains it, the link between them has failed
}


class Phase(StrEnum):
    """What a process is doing, in the order in which a run passes through them."""

    START = "start"
    JOIN = "join"
    DATA = "data"
    INIT = "init"
    RESTORE = "restore"
    COMPILE = "compile"
    STEP = "step"
    SAVE = "save"
    EVALUATE = "evaluate"
    SAMPLE = "sample"
    REWARD = "reward"
    DONE = "done"


class Progress(Message):
    """How far one process is.

    `attempt` counts the starts of the run's processes, from 0; `step` is the last completed step (0 before the
    first), `dispatched` the last one handed to the devices, `step_seconds` how long the last `steps` took: one, or as
    many as a program reports at once. `monotonic_seconds` is the writer's monotonic clock, comparable only with others
    of the same host. `seconds` is the time of this process by phase. `own_seconds` is how long this host's devices took
    for a fixed piece of work that waits for no other host, and `measured` how often that was measured: never if there
    is no other host. `doing` is what a long phase is at, for people.
    """

    attempt: int
    rank: int
    phase: Phase
    step: int
    dispatched: int
    step_seconds: float
    monotonic_seconds: float
    pid: int
    seconds: dict[str, float]
    own_seconds: float = 0.0
    measured: int = 0
    doing: str = ""
    steps: int = Field(default=1, ge=1)

    @property
    def each_seconds(self) -> float:
        """Return how long one of the last steps took."""
        return self.step_seconds / self.steps


def write_progress(path: Path, progress: Progress) -> None:
    """Replace the record at `path` by rename, so that a reader sees the old one or the new one, never a part."""
    replace_file(path, progress.model_dump_json(), durable=False)


def read_progress(path: Path) -> Progress | None:
    """Return the record at `path`, or None if no process has written one yet; ValueError if another thing is there."""
    try:
        stat = path.stat()
        if not S_ISREG(stat.st_mode):
            raise ValueError("it is no regular file")
        if stat.st_size > _PROGRESS_BYTES:
            raise ValueError(f"it has {stat.st_size:,} bytes")
        return Progress.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None


def progress_name(rank: int) -> str:
    """Return the file name of a process's progress record, which lies in a folder of its own host."""
    return f"progress-{rank}.json"


def log_path(directory: Path, attempt: int, host: int) -> Path:
    """Return the log of a host's trainer."""
    return directory / LOGS / attempt_name(attempt) / f"host-{host}.log"


def attempt_name(attempt: int) -> str:
    """Return the name of the folder of one start of the run's processes, in the logs and in the profile."""
    return f"attempt-{attempt}"


def attempt_of(name: str) -> int | None:
    """Return the attempt of a folder that `attempt_name` has named; None for any other."""
    match = _ATTEMPT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def trainer_logs(directory: Path, of_host: int | None = None) -> Iterator[tuple[int, int, Path]]:
    """Yield attempt, host and path of the trainers' logs in a run directory, of one host or of all, in no order."""
    for path in (directory / LOGS).glob(f"*/host-{'*' if of_host is None else of_host}.log"):
        attempt, host = attempt_of(path.parent.name), path.stem.removeprefix("host-")
        if attempt is not None and host.isdecimal():
            yield attempt, int(host), path


def checkpoint_root(path: str | None, directory: Path | str) -> str:
    """Return where a run's checkpoints are: the path in its job, or a folder of its directory, which may be a URL."""
    return path or f"{directory}/{CHECKPOINTS}"


def address_parts(root: str) -> tuple[str, str, str]:
    """Return the scheme of a root, the bucket or host behind it, and the path there; of a local path the path alone.

    A `#` or a `?` is a part of the path, as it is for whatever reads and writes objects.
    """
    scheme, found, rest = root.partition("://")
    name, slash, path = rest.partition("/")
    return (scheme.lower(), name, slash + path) if found else ("", "", root)


def checkpoint_name(step: int) -> str:
    """Return the name of a checkpoint's folder below the root of checkpoints."""
    return f"step-{step:08d}"


def checkpoint_step(name: str) -> int | None:
    """Return the step of a folder that `checkpoint_name` has named; None for any other."""
    match = _CHECKPOINT_NAME.fullmatch(name)
    return int(match[1]) if match and checkpoint_name(int(match[1])) == name else None


def checkpoint_steps(names: Iterable[str]) -> list[int]:
    """Return the steps of the checkpoints' folders among these names, ascending."""
    return sorted(step for name in names if (step := checkpoint_step(name)) is not None)
