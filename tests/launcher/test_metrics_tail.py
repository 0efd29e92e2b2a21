"""What the leader learns from metrics as they are written."""

import json
from pathlib import Path

from shardwise.job.contract import METRICS
from shardwise.launcher.metrics_tail import MetricsTail


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
        {"event": "started", "step": 0, "incarnation": 3},
        *(step(number, 1.5) for number in range(1, 8)),
        {"event": "saved", "step": 5, "durableSeconds": 0.5},
    ]
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    tail.read()
    assert (tail.incarnation, tail.stepped, tail.committed, tail.lost_seconds) == (3, True, 5, 0.0)

    with path.open("a") as file:
        file.write(json.dumps({"event": "restored", "step": 5, "incarnation": 4}) + "\n" + '{"step": 6, "ste')
    tail.read()
    assert (tail.incarnation, tail.stepped, tail.first_step, tail.lost_seconds) == (4, False, 5, 3.0)

    with path.open("a") as file:
        file.write('pSeconds": 2.0}\n')
    tail.read()
    assert tail.stepped
    assert tail.last == step(6, 2.0)


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
