"""What the leader learns from metrics as they are written."""

import json
from pathlib import Path

from shardwise.launcher.leader.metrics_tail import MetricsTail
from shardwise.protocol.contract import METRICS
from shardwise.protocol.run_status import CheckpointStatus, FailedSaves


def step(number: int, seconds: float) -> dict[str, float]:
    """Return a step's record."""
    return {"step": number, "stepSeconds": seconds}


def test_lost_steps_and_commits(tmp_path: Path) -> None:
    """Steps after the restored one were lost; commits count; what an earlier command wrote does not."""
    path = tmp_path / METRICS
    before = json.dumps({"event": "saved", "step": 90, "durableSeconds": 0.5}) + "\n"
    path.write_text(before)
    tail = MetricsTail(tmp_path, len(before))
    records = [
        {"event": "started", "step": 0, "attempt": 3},
        *(step(number, 1.5) for number in range(1, 8)),
        {"event": "saved", "step": 5, "durableSeconds": 0.5},
    ]
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    tail.read()
    assert (tail.attempt, tail.stepped, tail.committed, tail.lost_seconds) == (3, True, 5, 0.0)

    with path.open("a") as file:
        file.write(json.dumps({"event": "restored", "step": 5, "attempt": 4}) + "\n" + '{"step": 6, "ste')
    tail.read()
    assert (tail.attempt, tail.stepped, tail.first_step, tail.lost_seconds) == (4, False, 5, 3.0)

    with path.open("a") as file:
        file.write('pSeconds": 2.0}\n')
    tail.read()
    assert tail.stepped
    assert tail.last == step(6, 2.0)


def test_the_newest_checkpoint_and_failed_saves(tmp_path: Path) -> None:
    """The restored checkpoint is known too; saves that fail are kept until one succeeds or the trainers start again."""
    path = tmp_path / METRICS
    tail = MetricsTail(tmp_path, 0)
    failed = {"event": "saveFailed", "step": 9, "inARow": 1, "reason": "503"}
    seen = []
    for record in (
        {"event": "restored", "step": 5, "attempt": 0, "savedAt": 100.5},
        failed,
        failed | {"step": 12, "inARow": 2},
        {"event": "saved", "step": 15, "savedAt": 200.0, "durableSeconds": 0.5},
        failed,
        {"event": "restored", "step": 15, "attempt": 1, "savedAt": 200.0},
    ):
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        tail.read()
        seen.append((tail.checkpoint, tail.failed_saves))
    old = CheckpointStatus(step=5, saved_at=100.5)
    new = CheckpointStatus(step=15, saved_at=200.0, seconds=0.5)
    one, two = FailedSaves(in_a_row=1, reason="503"), FailedSaves(in_a_row=2, reason="503")
    assert seen == [(old, None), (old, one), (old, two), (new, None), (new, one), (new, None)]


def test_a_line_that_a_kill_cut_short(tmp_path: Path) -> None:
    """The next trainer removes the half line; the records after it are read as they are."""
    path = tmp_path / METRICS
    path.write_text(json.dumps(step(1, 1.0)) + '\n{"step": 2, "loss": 0.123456')
    tail = MetricsTail(tmp_path, 0)
    tail.read()
    with path.open("r+") as file:
        file.truncate(len(json.dumps(step(1, 1.0))) + 1)
    tail.read()
    with path.open("a") as file:
        file.write(json.dumps(step(2, 1.0)) + "\n")
    tail.read()
    assert tail.last["step"] == 2
