"""shardwise.protocol.leader_record: what a leader leaves to its successor."""

import errno
import json
import os
import time
from pathlib import Path

import pytest

from shardwise.launcher.leader.events import Events
from shardwise.protocol import leader_record
from shardwise.protocol.contract import LEADER_RECORD, LOGS, Cause
from shardwise.protocol.leader_record import LeaderRecord, RunResult, Used

RECORD = LeaderRecord(run="uid-0", scratch="/sw", leader_pid=1, port=8490, started_at=1.0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a run directory."""
    (tmp_path / LOGS).mkdir()
    return tmp_path


def test_round_trip(directory: Path) -> None:
    """What was written is read, with the budgets by cause."""
    used = Used(counts={Cause.OUT_OF_MEMORY: 1}, in_a_row=2, committed=7)
    result = RunResult(code=1, message="why", log_tail="the end")
    written = LeaderRecord(
        run="uid-0", scratch="/sw", leader_pid=1, port=8490, started_at=1.0, used=used, result=result
    ).write(directory)

    assert LeaderRecord.read(directory) == written


def test_a_successor_knows_when_it_was_written(directory: Path) -> None:
    """The time since then is nobody's work."""
    before = time.time()
    RECORD.write(directory)

    record = LeaderRecord.read(directory)
    assert record is not None
    assert before <= record.written_at <= time.time()


def test_the_end_of_a_run_is_that_run_s(directory: Path) -> None:
    """None before the run has ended, and of another command in the same directory."""
    codes = [LeaderRecord.code_of(directory, "uid-0")]
    for result in (None, RunResult(code=0, message="")):
        RECORD.model_copy(update={"result": result}).write(directory)
        codes.append(LeaderRecord.code_of(directory, "uid-0"))

    assert codes == [None, None, 0]
    assert LeaderRecord.code_of(directory, "uid-1") is None


def test_what_a_newer_release_has_added_is_left_out(directory: Path) -> None:
    """The image of a resumed job may be an older one than that of the round before."""
    used = Used(counts={Cause.HANG: 1}, in_a_row=2, committed=7)
    written = RECORD.model_copy(update={"used": used}).write(directory)
    newer = json.loads((directory / LOGS / LEADER_RECORD).read_text())
    newer |= {"weather": "fine", "used": {**newer["used"], "mood": 1}}
    (directory / LOGS / LEADER_RECORD).write_text(json.dumps(newer))

    assert LeaderRecord.read(directory) == written


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b'{"run": "ui', b"\0\xff", b"[]", b"{}", b'{"run": "uid-0", "scratch": "/sw", "leaderPid": "one"}'],
)
def test_damaged(directory: Path, damage: bytes) -> None:
    """A record that a loss of power has cut short is none, nor is other JSON; it ends no start and no follower."""
    RECORD.write(directory)
    (directory / LOGS / LEADER_RECORD).write_bytes(damage)

    assert LeaderRecord.read(directory) is None
    assert LeaderRecord.code_of(directory, "uid-0") is None


def test_a_disk_that_is_full_keeps_the_record_before(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader goes on with what it knows, and writes it when there is room; what cannot pass comes through."""
    RECORD.write(directory)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: _fail(errno.ENOSPC))
        patch.setattr(leader_record, "replace_file", lambda *_, **__: _fail(errno.ENOSPC))
        kept = RECORD.model_copy(update={"session": 2}).write(directory)
        Events(directory).write("slow", host=1)
        patch.setattr(leader_record, "replace_file", lambda *_, **__: _fail(errno.EACCES))
        with pytest.raises(PermissionError):
            kept.write(directory)
    before = LeaderRecord.read(directory)
    assert before is not None
    assert before.session == 0
    kept.write(directory)
    after = LeaderRecord.read(directory)
    assert after is not None
    assert after.session == 2


def _fail(number: int) -> None:
    raise OSError(number, os.strerror(number))
