"""shardwise.launcher.agent.follower: a host whose leader does not answer."""

import asyncio
import errno
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.launcher.agent.test_host import host_of
from tests.launcher.conftest import JOB

from shardwise.job.load import load
from shardwise.launcher.agent.follower import Follower
from shardwise.protocol.leader_record import LeaderRecord, RunResult


def follower_in(directory: Path) -> Follower:
    """Return that of a run in which no leader can be found."""
    (directory / "token").write_text("secret")
    host = host_of(directory)
    return Follower(host._config, load(JOB).spec.recovery, host, None)


def record(directory: Path, code: int | None) -> LeaderRecord:
    """Return the record of the run."""
    result = None if code is None else RunResult(code=code, message="")
    return LeaderRecord(run="life", scratch=str(directory), leader_pid=1, port=1, started_at=0.0, result=result)


def test_a_volume_that_fails_while_the_leader_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No host is lost for it: whether the run has ended is looked for again."""
    looks = [OSError(errno.ESTALE, "no"), record(tmp_path, None), OSError(errno.EIO, "no"), record(tmp_path, 80)]
    monkeypatch.setattr(LeaderRecord, "read", Mock(side_effect=looks))

    assert asyncio.run(follower_in(tmp_path).run()) == 80


def test_a_volume_that_a_person_has_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not pass ends the host, which says why."""
    monkeypatch.setattr(LeaderRecord, "read", Mock(side_effect=PermissionError(errno.EACCES, "no")))

    with pytest.raises(PermissionError):
        asyncio.run(follower_in(tmp_path).run())
