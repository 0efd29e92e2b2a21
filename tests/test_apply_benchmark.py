"""What `make bench-apply` reads and writes; the measuring itself needs a cluster."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from benchmarks.apply import page, paths  # noqa: E402  the folder is a script's, found by path

TRAINERS = dict.fromkeys(paths.OF_TRAINERS, 0.5)
MACHINE = {"date": "2026-01-01", "cores": 2, "processor": "any", "memory_gib": 1, "load": 0, "python": "3", "jax": "0"}


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    """Return what a run has written: agents met at 12, Ray was open at 15, and step 1 took 0.25 s."""
    (tmp_path / "logs").mkdir()
    events = [{"time": 15.0, "event": "session", "seconds": 3.0}, {"time": 15.5, "event": "attempt"}]
    (tmp_path / "logs" / "launcher.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (tmp_path / "summary.json").write_text(json.dumps({"phases": TRAINERS | {"step": 60.0}}))
    steps = [{"event": "started", "step": 0}, {"step": 1, "stepSeconds": 0.25}, {"step": 2, "stepSeconds": 9.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return tmp_path


def test_phases_follow_each_other_and_add_up(run_directory: Path) -> None:
    """Each ends where the next begins, and `other` is what nobody accounts for; none is below nothing."""
    seen = {paths.MADE: 10.5, paths.SCHEDULED: 10.499, paths.STARTED: 11.0}
    phases = paths.phases(10.0, seen, run_directory, 20.0)

    before = {paths.MADE: 0.5, paths.SCHEDULED: 0.0, paths.STARTED: 0.5, paths.AGENTS: 1.0, paths.RAY: 3.5}
    assert phases == before | TRAINERS | {paths.STEP: 0.25, paths.OTHER: 0.75, paths.TOTAL: 10.0}


def test_the_table_leaves_out_what_a_command_has_not(run_directory: Path) -> None:
    """A command makes no pods: its cells are empty there."""
    figures = {phase: {"median": seconds} for phase, seconds in paths.phases(10.0, {}, run_directory, 20.0).items()}
    results = {"machine": MACHINE, "rounds": 1, "ways": {paths.BY_COMMAND: figures}}

    rows = {row[0]: row[1:] for row in page.table(results).rows}
    assert rows[paths.MADE] == [""]
    assert rows[paths.TOTAL] == ["10.00"]
