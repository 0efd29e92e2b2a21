"""What the processes of one run agree on: exit codes, control words, phases, file names, the progress record.

The command line, the trainer, the launcher and the operator all read this module, and meet nowhere else.
It starts nothing, decides nothing, and reads no file but the progress record.
"""

import json
import os
import re
from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from pathlib import Path

from shardwise.job.files import replace_file

JOB_FILE = "job.yaml"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
CHECKPOINTS = "checkpoints"
LOGS = "logs"
PLOT = "loss.png"
LOCK = ".lock"
STATUS = "status.json"  # in the logs of a live run: where its leader is spoken to
GANG = "gang.json"  # in the logs: what the launcher must know after it was killed
COMMITTED = "COMMITTED"  # in a checkpoint's folder, written last: without it the checkpoint does not count

CACHE_VARIABLE = "SHARDWISE_CACHE"
CACHE_DEFAULT = "~/.cache/shardwise"
# Where a process keeps its compiled programs, if not in the cache, and the file of the key that seals them. In a pod
# they lie on the job's volume, so that a pod that takes another's place finds them.
PROGRAMS_VARIABLE = "SHARDWISE_PROGRAMS"
PROGRAMS_KEY_VARIABLE = "SHARDWISE_PROGRAMS_KEY_FILE"
PROGRAMS = "programs"  # their folder in the run directory, or in the cache

WORK_LIMIT_HANGS = 12
"""How many times `hangAfter` a trainer may work without a word before the first step, and wait for others to join."""

_CHECKPOINT_NAME = re.compile(r"step-(\d{8,10})")


class ExitCode(IntEnum):
    """How a trainer process ended.  Codes of our own start at 80: shells and signals use none from there to 125."""

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


class Control(IntEnum):
    """The word each process puts into a step; the largest one wins, so a stop beats a save."""

    NONE = 0
    MEASURE = 1
    SAVE = 2
    STOP = 3


class Cause(StrEnum):
    """Why an incarnation ended badly. Each cause has its own budget of restarts; bad input has none."""

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
        """The cause that a trainer's exit code says; a signal's and any other code is a failure."""
        return _CAUSES.get(code, cls.FAILURE)


_CAUSES: dict[int, Cause] = {
    ExitCode.USAGE: Cause.BAD_INPUT,
    ExitCode.BAD_INPUT: Cause.BAD_INPUT,
    ExitCode.NONFINITE: Cause.NONFINITE,
    ExitCode.OUT_OF_MEMORY: Cause.OUT_OF_MEMORY,
    ExitCode.STORAGE: Cause.STORAGE,
    ExitCode.DEVICE: Cause.DEVICE,
    ExitCode.PEER: Cause.DEVICE,  # where no peer explains it, the link between them is what has failed
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
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The last thing that one process is known to have done.

    `incarnation` counts the starts of the run's processes, from 0; `step` is the last completed step (0 before the
    first), `dispatched` the last one handed to the devices, `step_seconds` how long the last one took;
    `monotonic_seconds` is the writer's monotonic clock, comparable only with others of the same host. `seconds` is
    where this process's time went, by phase. `own_seconds` is how long this host's devices took for a fixed piece of
    work that waits for no other host, and `measured` how often that was measured: never where there is no other.
    """

    incarnation: int
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


def write_progress(path: Path, progress: Progress) -> None:
    """Replaces the record at `path` by rename, so that a reader sees the old one or the new one, never a part."""
    replace_file(path, json.dumps(asdict(progress)), durable=False)


def read_progress(path: Path) -> Progress | None:
    """The record at `path`, or None where no process has written one yet."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    fields = json.loads(text)
    return Progress(**{**fields, "phase": Phase(fields["phase"])})


def progress_name(rank: int) -> str:
    """The file of one process's progress record, in a folder of its own host."""
    return f"progress-{rank}.json"


def log_path(directory: Path, incarnation: int, host: int) -> Path:
    """The log of a host's trainer."""
    return directory / LOGS / f"incarnation-{incarnation}" / f"host-{host}.log"


def checkpoint_root(path: str | None, directory: Path) -> str:
    """Where a run's checkpoints are: the path in its job, or a folder of its directory."""
    return path or str(directory / CHECKPOINTS)


def checkpoint_name(step: int) -> str:
    """The folder of a checkpoint below the root of checkpoints."""
    return f"step-{step:08d}"


def checkpoint_step(name: str) -> int | None:
    """The inverse of `checkpoint_name`; None for a name that is none."""
    match = _CHECKPOINT_NAME.fullmatch(name)
    return int(match[1]) if match and checkpoint_name(int(match[1])) == name else None


def cache_directory() -> Path:
    """The folder for what may be rebuilt at any time (token caches, executables), by default below the home folder."""
    return Path(os.environ.get(CACHE_VARIABLE) or CACHE_DEFAULT).expanduser()
