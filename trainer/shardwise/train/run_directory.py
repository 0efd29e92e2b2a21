"""The run directory: the small files that stay there for people and tools.

Called by the start and the loop; read back by `shardwise status` through the names in `shardwise.job.contract`. It
knows nothing of checkpoints' insides. Who may write to it is settled by `shardwise.job.takeover`.

    DIR/job.yaml          the resolved job
    DIR/metrics.jsonl     one object a step; other events carry "event"
    DIR/summary.json      how the run stands or ended
    DIR/checkpoints/      see shardwise.train.checkpoint
    DIR/logs/             the identity of the run, the logs of every incarnation
    DIR/loss.png          the loss curve
    DIR/.run-id           by which the folder of checkpoints knows the run, wherever it is
"""

import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.job.contract import JOB_FILE, LOGS, METRICS, PLOT, SUMMARY
from shardwise.job.errors import RunDirectoryError
from shardwise.job.files import replace_file
from shardwise.job.takeover import commit_of

Json = Mapping[str, Any]
IDENTITY = "identity.json"
PEAK = "peak.json"
LEFT_OUT = "left-out.json"
ID = ".run-id"


@dataclass(frozen=True)
class RunDirectory:
    """The directory of a run, as one of its incarnations sees it."""

    path: Path
    incarnation: int

    def commit(self) -> AbstractContextManager[None]:
        """A block in which no newer incarnation begins; refused where there is one (`shardwise.job.takeover`)."""
        return commit_of(self.path, self.incarnation)

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

    def peak_flops(self, machine: str, measure: Callable[[], float]) -> float:
        """What a machine can do, measured once in a run: a busy moment at a restart would make the MFU jump."""
        path = self.logs / PEAK
        known = _read_json(path)
        if machine not in known:
            known[machine] = measure()
            replace_file(path, json.dumps(known) + "\n", durable=True)
        return float(known[machine])

    def run_id(self) -> str:
        """This directory's word for the run, the same for every start, wherever the directory is moved to."""
        path = self.path / ID
        if not path.exists():
            replace_file(path, f"{secrets.token_hex(8)}\n", durable=True)
        return path.read_text(encoding="utf-8").strip()

    def write_job(self, text: str) -> None:
        """Keep the resolved job."""
        replace_file(self.path / JOB_FILE, text, durable=True)

    def read_summary(self) -> dict[str, Any]:
        """The last summary, empty before the first."""
        return _read_json(self.path / SUMMARY)

    def write_summary(self, summary: Json) -> None:
        """Replace the summary."""
        replace_file(self.path / SUMMARY, json.dumps(summary, indent=2) + "\n", durable=True)

    def read_left_out(self) -> list[int]:
        """The numbers of the batches that the run has left out by itself, ascending."""
        return [int(number) for number in _read_json(self.logs / LEFT_OUT).get("batches", [])]

    def leave_out(self, batch: int) -> None:
        """Keep that the next start leaves a batch out."""
        batches = sorted({*self.read_left_out(), batch})
        replace_file(self.logs / LEFT_OUT, json.dumps({"batches": batches}) + "\n", durable=True)

    def read_identity(self) -> dict[str, Any]:
        """What the run in this directory is (`shardwise.job.identity`), empty before its first start."""
        return _read_json(self.logs / IDENTITY)

    def write_identity(self, identity: Json) -> None:
        """Keep what the run is."""
        replace_file(self.logs / IDENTITY, json.dumps(identity, indent=2, sort_keys=True) + "\n", durable=True)


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
