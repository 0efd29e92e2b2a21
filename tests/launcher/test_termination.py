"""What an agent leaves of its run: the end of its metrics, as far as its volume can be read."""

import errno
import json
from itertools import count
from pathlib import Path

import pytest

from shardwise.launcher.leader.result import read_summary
from shardwise.launcher.termination import termination_record
from shardwise.protocol import storage
from shardwise.protocol.contract import METRICS, SUMMARY
from shardwise.protocol.pods import TerminationRecord


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


@pytest.mark.parametrize(
    ("summary", "steps", "digest"),
    [
        ('{"of": null, "digest": "abc"}', 0, "abc"),
        ('{"of": 90, "digest": ["abc"]}', 90, None),
        ('{"of": 9223372036854775807, "digest": "abc"}', 0, "abc"),
        ('[{"accuracy": 0.9}]', 0, None),
    ],
)
def test_a_summary_of_a_program(tmp_path: Path, summary: str, steps: int, digest: str | None) -> None:
    """A program may not know how many steps it has, or write what it likes: that alone is missing from the record."""
    (tmp_path / SUMMARY).write_text(summary)
    (tmp_path / METRICS).write_text('{"step": 3, "loss": 1.5}\n')
    record = termination_record(tmp_path, 0, 0)

    assert (record.code, record.steps, record.digest, record.step, record.loss) == (0, steps, digest, 3, "1.5")
    assert TerminationRecord.loads(record.dumps()) == record


@pytest.mark.parametrize(
    "line",
    [
        "epoch 1 done",
        '["step", 4]',
        '{"iter": 4, "loss": 1.0}',
        '{"step": true, "loss": 1.0}',
        '{"step": 3000000000, "loss": 1.0}',
        '{"event": ["saved"], "step": 4}',
        "[" * 100_000,
    ],
)
def test_metrics_of_a_program(tmp_path: Path, line: str) -> None:
    """A line that a program has written for itself is no record of the run, and takes nothing from those that are."""
    (tmp_path / METRICS).write_text(f'{{"step": 3, "loss": 1.5}}\n{line}\n{{"event": "saved", "step": 2}}\n')
    record = termination_record(tmp_path, 0, 0)

    assert (record.step, record.loss, record.checkpoint_step) == (3, "1.5", 2)


def test_a_figure_that_is_no_number(tmp_path: Path) -> None:
    """It is not known; the step is."""
    lines = '{"step": 3, "loss": "low"}', '{"event": "evaluated", "step": 3, "heldOutLoss": []}'
    (tmp_path / METRICS).write_text("\n".join((*lines, "")))
    record = termination_record(tmp_path, 0, 0)

    assert (record.step, record.loss, record.held_out_loss) == (3, None, None)


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
