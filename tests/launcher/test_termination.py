"""What an agent leaves of its run: the end of its metrics, as far as its volume can be read."""

import errno
import json
from itertools import count
from pathlib import Path

import pytest

from shardwise.launcher.leader.result import read_summary
from shardwise.launcher.termination import termination_record
from shardwise.protocol import storage
from shardwise.protocol.contract import METRICS


def test_the_end_of_the_metrics(tmp_path: Path) -> None:
    """The last step, the last save and the last evaluation, each wherever it stands; None before there is one."""
    record = termination_record(tmp_path, 0, None, "told to go")
    assert (record.step, record.loss, record.held_out_loss, record.checkpoint_step) == (0, None, None, None)

    lines = (
        {"event": "evaluated", "step": 1, "heldOutLoss": 9.0},
        {"event": "evaluated", "step": 2, "heldOutLoss": 2.5},
        {"event": "saved", "step": 2},
        {"step": 3, "loss": 1.5},
        {"event": "restored", "step": 2},
    )
    (tmp_path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = termination_record(tmp_path, 0, None, "told to go")
    assert (record.step, record.loss, record.held_out_loss, record.checkpoint_step) == (3, "1.5", "2.5", 2)


@pytest.mark.parametrize(("failing", "step"), [(2, 3), (3, 0)])
def test_a_volume_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, step: int) -> None:
    """It is read again; if it does not come back, the record still says how the agent ended."""
    monkeypatch.setattr(storage, "WAITS_SECONDS", (0.0, 0.0))
    (tmp_path / METRICS).write_text(json.dumps({"step": 3, "loss": 1.5}) + "\n")
    tries = count(1)

    def fails_first(directory: Path) -> dict[str, object]:
        if next(tries) <= failing:
            raise OSError(errno.EIO, "Input/output error")
        return read_summary(directory)

    monkeypatch.setattr("shardwise.launcher.termination.read_summary", fails_first)
    record = termination_record(tmp_path, 1, 80)

    assert (record.code, record.host, record.step) == (80, 1, step)
