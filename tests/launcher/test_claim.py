"""shardwise.launcher.claim: one job at a time, and of that job one host 0, whether or not locks reach other hosts."""

import errno
import itertools
import os
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from shardwise.launcher import claim
from shardwise.launcher.claim import claimed
from shardwise.protocol.contract import LOCK, LOGS
from shardwise.protocol.errors import RunDirectoryError, StorageError
from shardwise.protocol.leader_record import LeaderRecord, RunResult
from shardwise.protocol.takeover import hold


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a holder to go."""
    monkeypatch.setattr(claim, "FREE_WITHIN_SECONDS", 0.0)


def led_by(directory: Path, run: str, **more: object) -> None:
    """Leave the record of a leader, written just now."""
    (directory / LOGS).mkdir(exist_ok=True)
    fields = {"run": run, "scratch": "", "leader_pid": 1, "port": 1, "started_at": 0.0, **more}
    LeaderRecord(**fields).write(directory)  # type: ignore[arg-type]


def test_held(tmp_path: Path) -> None:
    """A lock that stands ends this pod alone: its holder may be this job's, on a lost node. Afterwards it is free."""
    with hold(tmp_path), pytest.raises(StorageError, match="another host 0"), claimed(tmp_path, "uid-0"):
        pass
    with claimed(tmp_path, "uid-0"), pytest.raises(RunDirectoryError, match="live run"), hold(tmp_path):
        pass


def test_another_job(tmp_path: Path) -> None:
    """A live leader of another job is believed though its lock is not seen; the same job's other rounds are not it."""
    led_by(tmp_path, "other-uid-3")
    with (
        pytest.raises(RunDirectoryError, match=r"another job \(other-uid\)(.|\n)*another spec.pod.directory"),
        claimed(tmp_path, "uid-0"),
    ):
        pass
    with claimed(tmp_path, "other-uid-4"):
        pass


@pytest.mark.parametrize("how", [{"result": RunResult(code=0, message="")}, {"led": False}])
def test_another_job_that_ended(tmp_path: Path, how: dict[str, object]) -> None:
    """A job that has ended, or whose host 0 has gone in good order, leaves the directory to the next at once."""
    led_by(tmp_path, "other-uid-3", **how)
    with claimed(tmp_path, "uid-0"):
        pass


def test_another_job_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has not said anything for a while is not waited for."""
    led_by(tmp_path, "other-uid-3")
    monkeypatch.setattr(claim, "_STALE_SECONDS", 0.0)
    with claimed(tmp_path, "uid-0"):
        pass


@pytest.mark.parametrize("lives", [True, False])
def test_another_job_on_a_machine_whose_clock_is_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, lives: bool
) -> None:
    """Its record is no older for hours. While it changes the job lives; afterwards the directory is free."""
    now, monotonic = time.time(), itertools.count()

    def written() -> None:
        with monkeypatch.context() as ahead:
            ahead.setattr(time, "time", lambda: now + 7200 + next(monotonic))
            led_by(tmp_path, "other-uid-3")

    written()
    monkeypatch.setattr(claim, "FREE_WITHIN_SECONDS", 120.0)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(monotonic)))
    monkeypatch.setattr(time, "sleep", lambda _: written() if lives else None)
    with pytest.raises(RunDirectoryError, match="another job") if lives else nullcontext(), claimed(tmp_path, "uid-0"):
        pass


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOSPC])
def test_a_volume_that_is_not_well_is_no_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """What may pass is said as that, so that another pod tries again."""

    def broken(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", broken)
    with pytest.raises(StorageError, match=os.strerror(number)), claimed(tmp_path, "uid-0"):
        pass


def test_not_writable(tmp_path: Path) -> None:
    """A directory that cannot be written is refused for that reason, at once."""
    (tmp_path / LOCK).mkdir()
    with pytest.raises(RunDirectoryError, match="cannot be used"), claimed(tmp_path, "uid-0"):
        pass
