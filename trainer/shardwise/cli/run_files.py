"""A run as its directory shows it, read without JAX: its job, status, metrics and checkpoints.

Nothing is written, and the run's lock is held only for the instant of finding out whether another process holds it. The
leader of a live run is asked for its status.
"""

import errno
import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from shardwise.cli.command import of_trainer
from shardwise.cli.live import live_status
from shardwise.cli.recovery import Recovery
from shardwise.cli.run_directory import Fetched, shown
from shardwise.job.batch_sizes import steps_left
from shardwise.job.load import resolved_in
from shardwise.job.spec import TrainingJob
from shardwise.page.status import UNDER_WAY, status_word
from shardwise.protocol.contract import (
    BUCKET_LEASE,
    COMMITTED,
    JOB_FILE,
    LOCK,
    METRICS,
    SUMMARY,
    address_parts,
    checkpoint_root,
    checkpoint_steps,
)
from shardwise.protocol.errors import RunDirectoryError, UsageError
from shardwise.protocol.eta import RECENT_STEPS, eta_seconds, of_each_step
from shardwise.protocol.evaluated import results
from shardwise.protocol.run_status import RunStatus
from shardwise.protocol.shared_files import summary_of_run
from shardwise.train.metrics import recorded

_MOVING = ("running", "recovering")


@dataclass(frozen=True, kw_only=True)
class RunOverview:
    """One run.

    `status` is starting, running, recovering (its processes are started again), stopped (saved, can go on), complete,
    failed, nonfinite, dead (its process ended without a summary; can go on) or ready (never started). `live` is its
    leader's status, None if none answers. `records` are its metrics, one a step, and the last of them alone unless
    all were asked for (`damage`: of lines that are none), `evaluated` its newest evaluation. `checkpoints` are the
    committed steps, ascending; None: not listed (`unlisted`).
    """

    directory: Path
    job: TrainingJob | None
    status: str
    summary: Mapping[str, Any]
    live: RunStatus | None
    records: list[dict[str, Any]]
    evaluated: dict[str, Any] | None
    damage: str
    root: str
    checkpoints: list[int] | None
    unlisted: str

    @property
    def step(self) -> int:
        """Return the number of completed steps."""
        live = max((host.step for host in self.live.hosts), default=0) if self.live else 0
        return max(live, int(self.summary.get("steps", 0)), self.records[-1]["step"] if self.records else 0)

    @property
    def num_steps(self) -> int | None:
        """Return the steps of the whole run; None before its first start has read the job."""
        return (self.job and self.job.spec.num_steps) or self.summary.get("of")

    @property
    def recovery(self) -> Recovery | None:
        """Return what it recovers from; None unless it does."""
        return Recovery.of(self.directory, self.live) if self.live and self.status == "recovering" else None

    def recent(self, key: str) -> float | None:
        """Return the median of a metric over the last steps; None before the first."""
        values = [record[key] for record in self.records[-RECENT_STEPS:] if record.get(key) is not None]
        return float(median(values)) if values else None

    @property
    def eta_seconds(self) -> float | None:
        """Return the time left, by the leader's status if it is known; None unless the run is going."""
        told = self.live.progress.eta_seconds if self.live else None
        if told is not None or self.status not in _MOVING:
            return told if self.status in _MOVING else None
        known = [one for one in self.records[-RECENT_STEPS:] if one.get("stepSeconds") is not None]
        each = of_each_step([one["step"] for one in known], [one["stepSeconds"] for one in known])
        left = steps_left(self.job.spec.training_if_any if self.job else None, self.step, self.num_steps)
        return eta_seconds(left, each)

    def as_json(self) -> dict[str, Any]:
        """Return what `status --json` prints; null is what is not known."""
        newest = self.records[-1] if self.records else {}
        live = self.live.model_dump(mode="json") if self.live else {}
        return {
            "name": self.job.metadata.name if self.job else self.summary.get("name"),
            "status": self.status,
            "phase": live.get("phase"),
            "reason": live.get("reason"),
            "recovery": self.recovery.as_json() if self.recovery else None,
            "attempt": live.get("attempt"),
            "hosts": live.get("hosts", []),
            "slowestHost": live.get("slowestHost"),
            "restarts": live.get("restarts", self.summary.get("restarts", {})),
            "goodput": live.get("goodput", self.summary.get("goodput", {})),
            "step": self.step,
            "of": self.num_steps,
            "loss": newest.get("loss"),
            "evaluated": self.evaluated and {"step": self.evaluated["step"], "sets": results(self.evaluated)},
            "tokensPerSecond": self.recent("tokensPerSecond"),
            "mfu": self.recent("mfu"),
            "etaSeconds": self.eta_seconds,
            "checkpointRoot": self.root,
            "checkpoints": self.checkpoints,
            **{key: live.get(key) for key in ("checkpoint", "failedSaves", "localStep")},
            "phases": self.summary.get("phases", {}),
            "initialDigest": self.summary.get("initialDigest"),
            "digest": self.summary.get("digest"),
            # Of a live run it would be how the command before this one ended.
            "error": None if self.status in UNDER_WAY else self.summary.get("error"),
        }


def job_of(directory: Path, overrides: Sequence[str] = ()) -> TrainingJob:
    """Return the resolved job of a run, with `--set` overrides; UsageError if the directory holds none."""
    refuse_other_directory(directory)
    job = resolved_in(directory, overrides)
    if job is None:
        raise UsageError(f"{directory}: its run has not got as far as writing {JOB_FILE}; run it first")
    return of_trainer(job)


def root_of(job: TrainingJob, directory: Path) -> str:
    """Return where the checkpoints of a run are."""
    return checkpoint_root(job.spec.checkpoint_path, shown(directory))


def report_refused(console: Console, step: int, reason: str) -> None:
    """Say that a checkpoint is not used, and why."""
    console.print(f"checkpoint of step {step} refused: {reason}", markup=False)


def read_overview(directory: Path, *, whole: bool = False) -> RunOverview:
    """Read the run in this directory, with all of its metrics or the last; UsageError if it is no run directory."""
    refuse_other_directory(directory)
    fetched = Fetched.read(directory)
    alive = fetched.live if fetched else is_live(directory)
    summary, live = _read_summary(directory / SUMMARY), live_status(directory) if alive else None
    job = resolved_in(directory)
    root = checkpoint_root(job.spec.checkpoint_path if job else None, shown(directory))
    checkpoints, unlisted = committed_steps(root)
    known = recorded(directory / METRICS, last=None if whole else RECENT_STEPS)
    return RunOverview(
        directory=directory,
        job=job,
        status=status_word(summary, alive=alive, live=live),
        summary=summary,
        live=live,
        records=known.steps,
        evaluated=known.evaluation,
        damage=known.damage,
        root=root,
        checkpoints=checkpoints,
        unlisted=unlisted,
    )


def status_of(directory: Path) -> tuple[str, RunStatus | None]:
    """Return the status of a run, as `RunOverview` has it, and what its leader says."""
    fetched = Fetched.read(directory)
    alive = fetched.live if fetched else is_live(directory)
    live = live_status(directory) if alive else None
    return status_word(_read_summary(directory / SUMMARY), alive=alive, live=live), live


def refuse_other_directory(directory: Path) -> None:
    """Raise UsageError if the directory is not that of a run, or this person may not read it."""
    try:
        found = [directory / name for name in (LOCK, SUMMARY, BUCKET_LEASE) if (directory / name).is_file()]
    except PermissionError as error:
        raise UsageError(f"{directory} cannot be read ({error.strerror}); it may be another user's") from error
    for path in found:
        if not os.access(path, os.R_OK, effective_ids=True):
            raise UsageError(f"{path} cannot be read ({os.strerror(errno.EACCES)}); it may be another user's")
    if not found:
        why = "no such directory" if not directory.exists() else f"neither {SUMMARY} nor {LOCK} is in it"
        raise UsageError(f"{directory} is no run directory ({why}); expected the --dir of a `shardwise run`")


def is_live(directory: Path) -> bool:
    """Return whether a live process holds the run's lock. A shared lock, released at once, disturbs no other reader."""
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
            f"{path}: expected JSON, found {error}; remove it, and the next `shardwise run` writes it anew"
        ) from error
    if not isinstance(summary, dict):
        raise RunDirectoryError(
            f"{path}: expected a JSON object; remove it, and the next `shardwise run` writes it anew"
        )
    return summary_of_run(summary)


def committed_steps(root: str) -> tuple[list[int] | None, str]:
    """Return the committed steps below `root`, ascending, or None and why they are not known."""
    scheme, _, path = address_parts(root)
    if scheme not in ("", "file"):
        return _committed_in_bucket(root)
    return checkpoint_steps(marker.parent.name for marker in Path(path).glob(f"*/{COMMITTED}")), ""


def _committed_in_bucket(root: str) -> tuple[list[int] | None, str]:
    try:
        from fsspec.core import url_to_fs

        files, path = url_to_fs(root)
        # No pattern, for which a `?` of the path would be one too.
        inside = [name.removeprefix(f"{path}/").split("/") for name in files.find(path, maxdepth=2)]
        return checkpoint_steps(name for name, *below in inside if below == [COMMITTED]), ""
    except Exception as error:  # noqa: BLE001  each store's library raises its own; the rest of the status is still good
        return None, f"{type(error).__name__}: {error}"
