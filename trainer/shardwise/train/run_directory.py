"""The run directory: who may write to it, and the small files that stay there for people and tools.

Called by the loop; read back by `shardwise status` through the names in `shardwise.job.contract`. It knows nothing of
checkpoints' insides.

    DIR/job.yaml          the resolved job
    DIR/metrics.jsonl     one object a step; other events carry "event"
    DIR/summary.json      how the run stands or ended
    DIR/checkpoints/      see shardwise.train.checkpoint
    DIR/logs/             progress of each rank, the identity of the run, the trainer's log
    DIR/loss.png          the loss curve
    DIR/.lock             held by the live run
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from shardwise.job.contract import JOB_FILE, LOCK, LOGS, METRICS, PLOT, SUMMARY
from shardwise.job.errors import RunDirectoryError

Json = Mapping[str, Any]
IDENTITY = "identity.json"


@dataclass(frozen=True)
class RunDirectory:
    """A directory that this process holds the lock of; `incarnation` counts the processes that held it, from 0."""

    path: Path
    incarnation: int

    @classmethod
    @contextmanager
    def held(cls, path: Path) -> Iterator[Self]:
        """Make the directory if needed and hold it until the block ends.

        Raises:
            RunDirectoryError: another live run holds it, or it cannot be written.

        """
        try:
            (path / LOGS).mkdir(parents=True, exist_ok=True)
            handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunDirectoryError(
                f"{path}: cannot be used as a run directory ({error.strerror}); "
                "give a directory that can be written with --dir"
            ) from error
        try:
            held = _read_lock(handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunDirectoryError(
                    f"{path}: a live run (process {held.get('pid', 'unknown')}) is using this directory; "
                    "wait for it, stop it with SIGTERM, or give another --dir"
                ) from None
            incarnation = _read_lock(handle).get("incarnation", -1) + 1
            _write_lock(handle, {"pid": os.getpid(), "incarnation": incarnation})
            yield cls(path, incarnation)
        finally:
            os.close(handle)

    def fence(self) -> None:
        """Refuse to go on if a newer process has taken the directory over; called before a checkpoint is committed."""
        handle = os.open(self.path / LOCK, os.O_RDONLY)
        try:
            newest = _read_lock(handle).get("incarnation")
        finally:
            os.close(handle)
        if newest != self.incarnation:
            raise RunDirectoryError(
                f"{self.path}: a newer start of this run ({newest}) has taken over from this one "
                f"({self.incarnation}); nothing was committed"
            )

    @property
    def logs(self) -> Path:
        """The folder of logs and progress records."""
        return self.path / LOGS

    @property
    def metrics(self) -> Path:
        """The file of steps and events."""
        return self.path / METRICS

    @property
    def plot(self) -> Path:
        """The picture of the loss curve."""
        return self.path / PLOT

    def write_job(self, text: str) -> None:
        """Keep the resolved job."""
        write_whole(self.path / JOB_FILE, text)

    def read_summary(self) -> dict[str, Any]:
        """The last summary, empty before the first."""
        return _read_json(self.path / SUMMARY)

    def write_summary(self, summary: Json) -> None:
        """Replace the summary."""
        write_whole(self.path / SUMMARY, json.dumps(summary, indent=2) + "\n")

    def read_identity(self) -> dict[str, Any]:
        """What the run in this directory is (`shardwise.job.identity`), empty before its first start."""
        return _read_json(self.logs / IDENTITY)

    def write_identity(self, identity: Json) -> None:
        """Keep what the run is."""
        write_whole(self.logs / IDENTITY, json.dumps(identity, indent=2, sort_keys=True) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Replace a file by rename: a reader, or a crash, sees the old text or the new one, never a part."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if not isinstance(read, dict):
        raise RunDirectoryError(
            f"{path}: expected a JSON object, found {type(read).__name__}; restore the file or remove it"
        )
    return read


def _read_lock(handle: int) -> dict[str, Any]:
    """What the lock file says; empty for a new one and for one whose writer was killed while writing."""
    text = os.pread(handle, 4096, 0)
    try:
        read = json.loads(text)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _write_lock(handle: int, content: Json) -> None:
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(content).encode(), 0)
