"""metrics.jsonl: what a kill can and cannot do to it, and which record of a repeated step counts."""

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from shardwise.train import metrics
from shardwise.train.metrics import MetricsLog, recorded, records, steps


def test_a_line_cut_short_by_a_kill_is_dropped(tmp_path: Path) -> None:
    """Readers skip it, and the next run writes on from the last whole line."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert [record["step"] for record in records(path)] == [1]

    log = MetricsLog(path)
    log.write({"step": 2, "loss": 1.5})
    log.close()

    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


@pytest.mark.parametrize("whole", [0, 1, 40])
def test_only_the_end_of_a_long_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int) -> None:
    """Whole lines stay, whether or not what is cut off is longer than what is read at first."""
    monkeypatch.setattr(metrics, "_END_BYTES", 16)
    path, lines = tmp_path / "metrics.jsonl", '{"step": 1}\n' * whole
    for partial in ("", '{"step": 2', '{"step": 2, "note": "' + 1000 * "x"):
        path.write_text(lines + partial)
        MetricsLog(path).close()

        assert path.read_text() == lines


def test_lines_wait_for_a_disk_that_is_full(tmp_path: Path) -> None:
    """Training goes on; when there is room again every line is there, whole and in order, also one cut short."""
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    file, room = log._file, [3, 0, 0, 1000, 1000]

    class Full:
        def write(self, content: bytes) -> int:
            if not (size := room.pop(0)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return file.write(content[:size])

        def close(self) -> None:
            file.close()

    log._file = Full()  # type: ignore[assignment]
    for step in (1, 2, 3):
        log.write({"step": step})
    log.close()
    assert [record["step"] for record in records(path)] == [1, 2, 3]


def test_lines_do_not_wait_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory has an end, and what cannot pass is said at once."""
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(metrics, "_MAX_WAITING_BYTES", 50)
        log = MetricsLog(tmp_path / "metrics.jsonl")
        log._file.close()
        log._file = full
        log.write({"step": 1})
        with pytest.raises(OSError, match="No space left"):
            log.write({"step": 2, "word": "x" * 50})
    with pytest.raises(ValueError, match="closed file"):
        log.write({"step": 3})


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


def test_steps_of_a_start_that_saved_nothing_do_not_count(tmp_path: Path) -> None:
    """A run that begins anew, because no checkpoint was made, is no further than its new start has got."""
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    begun = {"event": "started", "step": 0}
    for record in (begun, {"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, begun, {"step": 1, "loss": 3.5}):
        log.write(record)
    log.close()
    assert steps(path) == [{"step": 1, "loss": 3.5}]


def test_what_json_cannot_hold_becomes_null(tmp_path: Path) -> None:
    """Every line stays valid JSON, also that of the step that went wrong."""
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"event": "nonfinite", "loss": float("nan"), "gradNorm": float("inf")})
    log.close()

    assert list(records(path)) == [{"event": "nonfinite", "loss": None, "gradNorm": None}]


def test_the_newest_evaluation_is_one_that_counts(tmp_path: Path) -> None:
    """What was evaluated of steps beyond a restore is superseded; a loss in a set that is no number is null."""
    path = tmp_path / "metrics.jsonl"
    assert recorded(path).evaluation is None
    log = MetricsLog(path)
    for step in (2, 4):
        log.write({"event": "evaluated", "step": step, "sets": {"books": {"loss": float("nan"), "tokens": 9.0}}})
    log.write({"event": "restored", "step": 3})
    log.close()

    assert recorded(path).evaluation == {"step": 2, "sets": {"books": {"loss": None, "tokens": 9.0}}}
    assert [(record["event"], record["step"]) for record in recorded(path).events] == [
        ("evaluated", 2),
        ("evaluated", 4),
        ("restored", 3),
    ]


def test_evaluations_of_a_branch_that_was_left_do_not_count(tmp_path: Path) -> None:
    """The plot has one line of them: that of the steps that count."""
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in (3, 6, 9):
        log.write({"event": "evaluated", "step": step})
    log.write({"event": "restored", "step": 4})
    log.write({"event": "evaluated", "step": 5})
    log.close()

    assert [record["step"] for record in recorded(path).evaluations] == [3, 5]


class _Counted(dict[str, Any]):
    """A record that counts how often its step is looked at."""

    looks = 0

    def __getitem__(self, key: str) -> Any:
        _Counted.looks += key == "step"
        return super().__getitem__(key)


def test_many_evaluations_are_looked_through_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The end of a run of weeks, and each look at its status, take time by their number and not by its square."""
    known = [_Counted(event="evaluated", step=step) for step in range(1, 3001)]
    monkeypatch.setattr(metrics, "records", lambda *_, **__: iter(known))

    assert recorded(tmp_path).evaluation == {"step": 3000}
    assert _Counted.looks < 10 * len(known)


@pytest.mark.parametrize("damaged", [b'{"step": 2, "lo', b"\x00\x00\xff", b"", b"7", b"[" * 100_000])
def test_a_damaged_line_is_named_by_its_number(tmp_path: Path, damaged: bytes) -> None:
    """It counts as not there; every other line is read."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + damaged + b'\n{"step": 3}\n')
    assert [*records(path)] == [{"step": 1}, {"step": 3}]
    assert recorded(path).damage == "metrics.jsonl: line 2 cannot be read as JSON; passed over"


def test_of_many_damaged_lines_some_are_named(tmp_path: Path) -> None:
    """And how many more there are; of a file without one nothing is said."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "lo')
    assert recorded(path).damage == ""
    path.write_bytes(b'{"step": 1}\n' + 8 * b"no\n")
    said = "metrics.jsonl: lines 2, 3, 4, 5, 6 and 3 more cannot be read as JSON; passed over"
    assert recorded(path).damage == said


def test_the_last_steps_are_those_of_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the run went back to; of a long row of steps few lines are read as JSON."""
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"event": "started", "step": 0})
    for start, stop, event in ((0, 100, "saved"), (100, 199, "evaluated"), (199, 230, "restored"), (100, 150, "saved")):
        for step in range(start + 1, stop + 1):
            log.write({"step": step, "loss": float(start)})
        log.write({"event": event, "step": 100 if event == "restored" else stop})
        whole, last = recorded(path), recorded(path, last=5)

        assert last.steps[-5:] == whole.steps[-5:]
        assert (last.events, last.evaluation) == (whole.events, whole.evaluation)
    log.close()
    path.write_bytes(path.read_bytes().replace(b'{"step": 120, ', b'"step": 120, '))
    assert recorded(path, last=5).damage == recorded(path).damage != ""

    read = Mock(wraps=json.loads)
    monkeypatch.setattr(json, "loads", read)
    recorded(path, last=5)
    assert read.call_count < 40


def test_no_file_has_no_records(tmp_path: Path) -> None:
    """Before the first step there is nothing to read, and that is no error."""
    assert steps(tmp_path / "metrics.jsonl") == []


def test_a_full_log_does_not_take_the_place_of_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk of metrics and log is full, what ends the run is still what ended it."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = MetricsLog(tmp_path / "metrics.jsonl")
    monkeypatch.setattr(MetricsLog, "_flush", full)
    monkeypatch.setattr(sys, "stderr", Mock(write=full))
    with pytest.raises(FloatingPointError, match="the loss is nan"), log.closing():
        raise FloatingPointError("the loss is nan")
