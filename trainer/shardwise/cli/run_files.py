"""What a run directory says of its run, read without JAX.

Called by `status`, and by the commands that need a run's job. It never writes, and holds the run's lock only for the
instant of asking whether somebody else does. Of a live run it asks the launcher.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from shardwise.cli.live import live_status
from shardwise.job.contract import (
    COMMITTED,
    JOB_FILE,
    LOCK,
    METRICS,
    SUMMARY,
    checkpoint_root,
    checkpoint_step,
)
from shardwise.job.errors import RunDirectoryError, UsageError
from shardwise.job.load import load
from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob
from shardwise.train.metrics import steps

RECENT_STEPS = 20
"""Of which speed and time left are measured: enough to even out a slow step, few enough to follow a change."""

_LIVE = ("starting", "running")


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """How a run stands.

    `status` is starting, running, stopped (saved, can go on), complete, failed, nonfinite, dead (its process ended
    without a word; can go on) or ready (never started). `live` is what its launcher says of it, None where there is
    none. `records` are its metrics, one a step. `checkpoints` are the
    committed steps, ascending; None where `root` could not be listed, and then `unlisted` says why.
    """

    directory: Path
    job: TrainingJob | None
    status: str
    summary: Mapping[str, Any]
    live: Mapping[str, Any] | None
    records: list[dict[str, Any]]
    root: str
    checkpoints: list[int] | None
    unlisted: str

    @property
    def step(self) -> int:
        """Completed steps."""
        live = max((host["step"] for host in self.live["hosts"]), default=0) if self.live else 0
        return max(live, int(self.summary.get("steps", 0)), self.records[-1]["step"] if self.records else 0)

    @property
    def num_steps(self) -> int | None:
        """Steps of the whole run; None before its first start has read the job."""
        return self.job.spec.training.steps if self.job else self.summary.get("of")

    def recent(self, key: str) -> float | None:
        """The median of a metric over the last steps; None before the first."""
        values = [record[key] for record in self.records[-RECENT_STEPS:] if record.get(key) is not None]
        return float(median(values)) if values else None

    @property
    def eta_seconds(self) -> float | None:
        """Time left at the median speed of the last steps; None unless the run is going."""
        seconds = self.recent("stepSeconds")
        if self.status != "running" or self.num_steps is None or seconds is None:
            return None
        return seconds * (self.num_steps - self.step)

    def as_json(self) -> dict[str, Any]:
        """The status as `status --json` prints it; null is what is not known."""
        newest = self.records[-1] if self.records else {}
        return {
            "name": self.job.metadata.name if self.job else self.summary.get("name"),
            "status": self.status,
            "phase": self.live["phase"] if self.live else None,
            "reason": self.live["reason"] if self.live else None,
            "incarnation": self.live["incarnation"] if self.live else None,
            "hosts": self.live["hosts"] if self.live else [],
            "slowestHost": self.live["slowestHost"] if self.live else None,
            "restarts": self.live["restarts"] if self.live else self.summary.get("restarts", {}),
            "goodput": self.live["goodput"] if self.live else self.summary.get("goodput", {}),
            "step": self.step,
            "of": self.num_steps,
            "loss": newest.get("loss"),
            "tokensPerSecond": self.recent("tokensPerSecond"),
            "mfu": self.recent("mfu"),
            "etaSeconds": self.eta_seconds,
            "checkpointRoot": self.root,
            "checkpoints": self.checkpoints,
            "checkpoint": self.live["checkpoint"] if self.live else None,
            "failedSaves": self.live["failedSaves"] if self.live else None,
            "phases": self.summary.get("phases", {}),
            "initialDigest": self.summary.get("initialDigest"),
            "digest": self.summary.get("digest"),
            "error": self.summary.get("error"),
        }


def job_of(directory: Path) -> TrainingJob:
    """The resolved job of a run; UsageError where the directory holds none."""
    refuse_other_directory(directory)
    path = directory / JOB_FILE
    if not path.exists():
        raise UsageError(f"{directory}: its run has not got as far as writing {JOB_FILE}; run it first")
    return resolve(load(path))


def root_of(job: TrainingJob, directory: Path) -> str:
    """Where the checkpoints of a run are."""
    return checkpoint_root(job.spec.training.checkpoint.path, directory)


def report_refused(console: Console, step: int, reason: str) -> None:
    """Say that a checkpoint is not used, and why."""
    console.print(f"checkpoint of step {step} refused: {reason}", markup=False)


def read_status(directory: Path) -> RunStatus:
    """How the run in this directory stands; UsageError where it is no run directory."""
    refuse_other_directory(directory)
    alive = is_live(directory)
    summary = _read_summary(directory / SUMMARY)
    status = summary.get("status", "ready")
    job = resolve(load(directory / JOB_FILE)) if (directory / JOB_FILE).exists() else None
    root = checkpoint_root(job.spec.training.checkpoint.path if job else None, directory)
    checkpoints, unlisted = _committed(root)
    return RunStatus(
        directory=directory,
        job=job,
        status="dead" if status in _LIVE and not alive else status,
        summary=summary,
        live=live_status(directory) if alive else None,
        records=steps(directory / METRICS),
        root=root,
        checkpoints=checkpoints,
        unlisted=unlisted,
    )


def refuse_other_directory(directory: Path) -> None:
    """UsageError where the directory is not that of a run."""
    if not any((directory / name).is_file() for name in (LOCK, SUMMARY)):
        found = "no such directory" if not directory.exists() else f"neither {SUMMARY} nor {LOCK} is in it"
        raise UsageError(f"{directory} is no run directory ({found}); expected the --dir of a `shardwise run`")


def is_live(directory: Path) -> bool:
    """Whether a live process holds the run's lock. A shared lock, given back at once, disturbs no other reader."""
    try:
        handle = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RunDirectoryError(
            f"{path}: expected JSON, found {error}; the next `shardwise run` writes it anew"
        ) from error
    if not isinstance(summary, dict):
        raise RunDirectoryError(f"{path}: expected a JSON object; the next `shardwise run` writes it anew")
    return summary


def _committed(root: str) -> tuple[list[int] | None, str]:
    """The committed steps below `root`, or None and why they are not known."""
    url = urlsplit(root)
    if url.scheme not in ("", "file"):
        return _committed_in_bucket(root)
    folder = Path(root if url.scheme == "" else url.path)
    return _steps(marker.parent.name for marker in folder.glob(f"*/{COMMITTED}")), ""


def _committed_in_bucket(root: str) -> tuple[list[int] | None, str]:
    try:
        from fsspec.core import url_to_fs

        files, path = url_to_fs(root)
        return _steps(marker.split("/")[-2] for marker in files.glob(f"{path}/*/{COMMITTED}")), ""
    except Exception as error:  # noqa: BLE001  each store's library raises its own; the rest of the status is still good
        return None, f"{type(error).__name__}: {error}"


def _steps(names: Any) -> list[int]:
    return sorted(step for name in names if (step := checkpoint_step(name)) is not None)
