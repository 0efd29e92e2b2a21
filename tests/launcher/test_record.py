"""shardwise.launcher.record: what a leader leaves to its successor."""

from pathlib import Path

import pytest

from shardwise.job.contract import GANG, LOGS, Cause
from shardwise.launcher.budgets import Used
from shardwise.launcher.record import GangRecord

RECORD = GangRecord(run="uid-0", scratch="/sw", leader_pid=1, port=8490, started_at=1.0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a run directory."""
    (tmp_path / LOGS).mkdir()
    return tmp_path


def test_round_trip(directory: Path) -> None:
    """What was written is read, with the budgets by cause."""
    used = Used(counts={Cause.OUT_OF_MEMORY: 1}, in_a_row=2, committed=7)
    word = {"code": 1, "words": "why", "logTail": "the end"}
    written = GangRecord(
        run="uid-0", scratch="/sw", leader_pid=1, port=8490, started_at=1.0, used=used, code=1, word=word
    ).write(directory)

    assert GangRecord.read(directory) == written


@pytest.mark.parametrize("damage", ["", "{", '{"run": "ui'])
def test_damaged(directory: Path, damage: str) -> None:
    """A record that a loss of power has cut short is none, and ends no start."""
    RECORD.write(directory)
    (directory / LOGS / GANG).write_text(damage)

    assert GangRecord.read(directory) is None
