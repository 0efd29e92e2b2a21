"""shardwise.launcher.agent.follower: a host whose leader does not answer, or that cannot start Ray."""

import asyncio
import errno
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
from tests.launcher.agent.test_host import host_of
from tests.launcher.conftest import JOB

from shardwise.job.load import load
from shardwise.launcher.agent.follower import Follower
from shardwise.launcher.ray.node import folder_of, node_part
from shardwise.launcher.system import processes
from shardwise.protocol.leader_record import LeaderRecord, RunResult
from shardwise.protocol.poll import PollAnswer


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


def test_ray_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host, and its trainer, go on without; each poll tries again, as if nothing had been tried before."""
    raylet = Mock(wait=AsyncMock(return_value=0))
    start = AsyncMock(side_effect=[OSError(errno.EAGAIN, "no"), OSError(errno.ENOSPC, "no"), raylet])
    monkeypatch.setattr(processes, "start", start)
    follower = follower_in(tmp_path)
    answers = [
        PollAnswer(
            leader_id="leader", ray_session=1, ray_address="gcs/00", over=None, may_go=True, superseded=False, done=done
        )
        for done in (None, None, None, 80)
    ]
    monkeypatch.setattr(follower, "_client", Mock(poll=Mock(side_effect=answers)))

    assert asyncio.run(follower.run()) == 80
    assert start.await_count == 3
    raylet.wait.assert_awaited()
    assert not folder_of(follower._config.place, node_part(0, 1)).exists()
