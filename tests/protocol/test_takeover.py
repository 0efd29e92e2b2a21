"""shardwise.protocol.takeover: one live run in a directory, and no commit by an attempt that was taken over from."""

import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from shardwise.cli.run_files import is_live
from shardwise.protocol import takeover
from shardwise.protocol.contract import LOCK, LOGS
from shardwise.protocol.errors import RunDirectoryError, StorageError
from shardwise.protocol.takeover import ATTEMPT_FILE, hold, hold_newest_attempt, next_attempt

HOLD = """
import sys, pathlib
from shardwise.protocol.takeover import hold
with hold(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_who_only_looks_keeps_no_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that asks at this instant whether the run is live has the lock for a moment, which is waited for."""
    with hold(tmp_path):
        pass
    with (tmp_path / LOCK).open() as looker:
        fcntl.flock(looker, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda _seconds: fcntl.flock(looker, fcntl.LOCK_UN))
        with hold(tmp_path):
            assert is_live(tmp_path)


def test_a_live_run_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps the lock for itself is no look: nothing is waited for."""
    monkeypatch.delattr(time, "sleep")
    refused = pytest.raises(RunDirectoryError, match=f"a live run .process {os.getpid()}. is using")
    with hold(tmp_path), refused, hold(tmp_path):
        pass


def test_looks_without_end_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared lock that stays ends in the same words, not in a command that hangs."""
    monkeypatch.setattr(takeover, "_LOOKS_SECONDS", 0.0)
    (tmp_path / LOCK).touch()
    with (tmp_path / LOCK).open() as looker:
        fcntl.flock(looker, fcntl.LOCK_SH)
        with pytest.raises(RunDirectoryError, match="is using this directory"), hold(tmp_path):
            pass


def test_a_second_live_run_is_refused_by_name_and_a_dead_one_is_not(tmp_path: Path) -> None:
    """While a process holds the directory another is refused with its pid; once it is killed the next may go on."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunDirectoryError, match=f"process {other.pid}"), hold(tmp_path):
            pass
        other.kill()
        other.wait()

    with hold(tmp_path):
        pass


def test_a_directory_is_made_and_let_go_again(tmp_path: Path) -> None:
    """With those above it; and a process that holds it no more may hold it again."""
    for _ in range(2):
        with hold(tmp_path / "team" / "run"):
            assert (tmp_path / "team" / "run" / LOGS).is_dir()


def test_a_file_that_was_half_written_is_no_obstacle(tmp_path: Path) -> None:
    """Rubbish in the lock file, as a machine that lost power leaves it, keeps nobody out."""
    (tmp_path / LOCK).write_text('{"pid": 12')

    with hold(tmp_path):
        pass


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    """A file where the directory should be: said in words, with what to do."""
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match="--dir"), hold(tmp_path / "file"):
        pass


def test_attempts_are_counted_from_zero(tmp_path: Path) -> None:
    """Each start has a number of its own."""
    assert [next_attempt(tmp_path) for _ in range(3)] == [0, 1, 2]


def test_a_commit_that_hangs_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits says for what, and counts no start; once the commit has ended the next one counts."""
    monkeypatch.setattr(takeover, "COMMIT_WITHIN_SECONDS", 0.3)
    monkeypatch.setattr(takeover, "_TELL_SECONDS", 0.0)
    told: list[str] = []
    with hold_newest_attempt(tmp_path, next_attempt(tmp_path)):
        with pytest.raises(StorageError, match=r"\.attempt: a process of an earlier start has held its lock for"):
            next_attempt(tmp_path, told.append)
        assert ["earlier start" in words for words in told] == [True]

    assert next_attempt(tmp_path) == 1


def test_only_the_newest_attempt_commits(tmp_path: Path) -> None:
    """An older one is refused before its block begins."""
    old, new = next_attempt(tmp_path), next_attempt(tmp_path)
    with hold_newest_attempt(tmp_path, new):
        pass
    with pytest.raises(RunDirectoryError, match="newer start"), hold_newest_attempt(tmp_path, old):
        pytest.fail("an attempt that was taken over from has committed")


def test_a_new_attempt_waits_for_a_commit_that_has_begun(tmp_path: Path) -> None:
    """Between the check and the marker nobody takes over: the lock that counting needs is held."""
    with (
        hold_newest_attempt(tmp_path, next_attempt(tmp_path)),
        (tmp_path / ATTEMPT_FILE).open("r+b") as file,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(("own", "earlier", "number"), [(0, 6, 7), (3, 1, 3), (0, 0, 1)])
def test_starts_that_an_earlier_release_counted_are_counted(
    tmp_path: Path, own: int, earlier: int, number: int
) -> None:
    """It had another file; the larger number holds, also after a rollback, and nobody commits by that file any more."""
    for _ in range(own):
        next_attempt(tmp_path)
    (tmp_path / ".incarnation").write_text(f'{{"incarnation": {earlier}}}'.ljust(64))

    assert next_attempt(tmp_path) == number
    assert next_attempt(tmp_path) == number + 1
    assert not (tmp_path / ".incarnation").exists()


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.ENOSPC, StorageError), (errno.ESTALE, StorageError), (errno.EACCES, OSError)]
)
def test_a_volume_that_refuses_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    """What may pass is an error of storage, which a run has restarts for; and the start was not counted."""
    with monkeypatch.context() as failing:
        failing.setattr(os, "pwrite", Mock(side_effect=OSError(number, os.strerror(number))))
        with pytest.raises(expected, match=os.strerror(number)):
            next_attempt(tmp_path)

    assert next_attempt(tmp_path) == 0
