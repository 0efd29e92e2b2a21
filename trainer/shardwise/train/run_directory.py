"""The run directory: the small files that a run keeps there for people and tools.

`shardwise status` reads them under the names in `shardwise.protocol.contract`; `shardwise.protocol.takeover` decides
which attempt may write.

    DIR/job.yaml          the resolved job
    DIR/metrics.jsonl     one object per step; other events have a key "event"
    DIR/summary.json      the state of the run, or its result
    DIR/checkpoints/      see shardwise.train.checkpoint
    DIR/logs/             the identity of the run, its forks, the step it was told to go back to, its peak FLOP/s,
                          the batches left out; the logs of every attempt
    DIR/loss.png          the loss curve
    DIR/profile/          traces of some steps, if the job asks for them (`shardwise.train.profiler`)
    DIR/.run-id           the id by which the folder of checkpoints recognises the run, wherever either is moved
"""

import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardwise.job.load import loads_checked
from shardwise.job.spec import TrainingJob
from shardwise.protocol.contract import (
    FORKS,
    IDENTITY,
    JOB_FILE,
    LEFT_OUT,
    LOGS,
    METRICS,
    PEAK,
    PLOT,
    PROFILE,
    RUN_ID,
    SUMMARY,
    WENT_BACK,
    attempt_name,
)
from shardwise.protocol.errors import JobError, RunDirectoryError
from shardwise.protocol.files import replace_file
from shardwise.protocol.takeover import hold_newest_attempt

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Forks:
    """How often a run has gone back by a fork, to steps that it had taken as another run."""

    count: int
    since: int
    """The step that it goes on from as the run that it is now."""

    @property
    def suffix(self) -> str:
        """What sets names of the run as it is now apart from those of before; nothing before the first such fork."""
        return f"-fork-{self.count}" if self.count else ""


@dataclass(frozen=True)
class RunDirectory:
    """The directory of a run, as one of its attempts sees it."""

    path: Path
    attempt: int

    def hold_attempt(self) -> AbstractContextManager[None]:
        """Keep newer attempts from starting while the block runs; refuse if one has (`shardwise.protocol.takeover`)."""
        return hold_newest_attempt(self.path, self.attempt)

    @property
    def logs(self) -> Path:
        """The folder of logs."""
        return self.path / LOGS

    @property
    def metrics(self) -> Path:
        """The file of steps and events."""
        return self.path / METRICS

    @property
    def plot(self) -> Path:
        """The picture of the loss curve."""
        return self.path / PLOT

    def profile(self, rank: int) -> Path:
        """Return the folder for the trace of one process."""
        return self.path / PROFILE / attempt_name(self.attempt) / f"rank-{rank}"

    def peak_flops(self, machine: str, measure: Callable[[], float]) -> float:
        """Return the machine's FLOP/s, measured once per run: a busy moment at a restart would make the MFU jump."""
        path = self.logs / PEAK
        known = _read_json(path)
        if machine not in known:
            known[machine] = measure()
            replace_file(path, json.dumps(known) + "\n", durable=True)
        return float(known[machine])

    def run_id(self) -> str:
        """Return the id of the run, made at its first start. It stays the same if the directory is moved."""
        path = self.path / RUN_ID
        if not path.exists():
            replace_file(path, f"{secrets.token_hex(8)}\n", durable=True)
        return path.read_text(encoding="utf-8").strip()

    def write_job(self, text: str) -> None:
        """Write the resolved job."""
        replace_file(self.path / JOB_FILE, text, durable=True)

    def read_job(self) -> TrainingJob | None:
        """Return the resolved job of the run's last start; None before the first, or if this release cannot read it."""
        path = self.path / JOB_FILE
        if not path.exists():
            return None
        try:
            return loads_checked(path.read_text(encoding="utf-8"), source=str(path))
        except JobError:  # of a release whose fields had other values; it is about to be replaced
            return None

    def read_summary(self) -> dict[str, Any]:
        """Return the last summary, or {} before the first."""
        return _read_json(self.path / SUMMARY)

    def write_summary(self, summary: Json) -> None:
        """Replace the summary."""
        replace_file(self.path / SUMMARY, json.dumps(summary, indent=2) + "\n", durable=True)

    def read_left_out(self) -> list[int]:
        """Return the numbers of the batches that the run itself has left out, ascending."""
        return [int(number) for number in _read_json(self.logs / LEFT_OUT).get("batches", [])]

    def leave_out(self, batch: int) -> None:
        """Make the next start leave out this batch."""
        batches = sorted({*self.read_left_out(), batch})
        replace_file(self.logs / LEFT_OUT, json.dumps({"batches": batches}) + "\n", durable=True)

    def forget_left_out(self) -> None:
        """Leave out nothing any more; the file stays, since a copy of the directory may keep one that is gone."""
        replace_file(self.logs / LEFT_OUT, json.dumps({"batches": []}) + "\n", durable=True)

    def read_forks(self) -> Forks:
        """Return how often the run has gone back by a fork."""
        noted = _read_json(self.logs / FORKS)
        return Forks(count=int(noted.get("count", 0)), since=int(noted.get("since", 0)))

    def write_forks(self, forks: Forks) -> None:
        """Write how often the run has gone back by a fork."""
        replace_file(self.logs / FORKS, json.dumps(asdict(forks)) + "\n", durable=True)

    @property
    def went_back(self) -> Path:
        """The file with the step that the run was told to go back to, and has."""
        return self.logs / WENT_BACK

    def read_went_back(self) -> int | None:
        """Return the step that the run was last told to go back to, and has; None if it is another run since."""
        step = _read_json(self.went_back).get("step")
        return None if step is None else int(step)

    def write_went_back(self, step: int | None) -> None:
        """Note the step that the run has gone back to; None forgets it."""
        replace_file(self.went_back, json.dumps({"step": step}) + "\n", durable=True)

    def read_identity(self) -> dict[str, Any]:
        """Return the identity of the run in this directory (`shardwise.job.identity`), or {} before its first start."""
        return _read_json(self.logs / IDENTITY)

    def write_identity(self, identity: Json) -> None:
        """Write the identity of the run."""
        replace_file(self.logs / IDENTITY, json.dumps(identity, indent=2, sort_keys=True) + "\n", durable=True)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        found = type(read).__name__
    except FileNotFoundError:
        return {}
    except ValueError:
        read, found = None, "no JSON"
    if not isinstance(read, dict):
        raise RunDirectoryError(f"{path}: expected a JSON object, found {found}; restore the file or remove it")
    return read
