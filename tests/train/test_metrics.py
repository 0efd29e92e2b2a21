"""metrics.jsonl: what a kill can and cannot do to it, and which record of a repeated step counts."""

import json
from pathlib import Path

from shardwise.train.metrics import MetricsLog, records, steps


def test_a_line_cut_short_by_a_kill_is_dropped(tmp_path: Path) -> None:
    """Readers skip it, and the next run writes on from the last whole line."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert [record["step"] for record in records(path)] == [1]

    log = MetricsLog(path)
    log.write({"step": 2, "loss": 1.5})
    log.close()

    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_steps_that_were_repeated_after_a_restart_count_once(tmp_path: Path) -> None:
    """After a restore from step 1, what was written of later steps before it is superseded."""
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for record in (
        {"event": "started", "step": 0},
        {"step": 1, "loss": 3.0},
        {"step": 2, "loss": 9.0},
        {"step": 3, "loss": 9.0},
        {"event": "restored", "step": 1},
        {"step": 2, "loss": 2.0},
    ):
        log.write(record)
    log.close()

    assert [(record["step"], record["loss"]) for record in steps(path)] == [(1, 3.0), (2, 2.0)]


def test_what_json_cannot_hold_becomes_null(tmp_path: Path) -> None:
    """Every line stays valid JSON, also that of the step that went wrong."""
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"event": "nonfinite", "loss": float("nan"), "gradNorm": float("inf")})
    log.close()

    assert list(records(path)) == [{"event": "nonfinite", "loss": None, "gradNorm": None}]


def test_no_file_has_no_records(tmp_path: Path) -> None:
    """Before the first step there is nothing to read, and that is no error."""
    assert steps(tmp_path / "metrics.jsonl") == []
