"""shardwise.cli.logs and shardwise.cli.stop, without a live run; with one they are in tests/hosts."""

from pathlib import Path

import pytest
from tests.cli.conftest import Command


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a run directory with the logs of two hosts, the second of which was lost in the second attempt."""
    (tmp_path / ".lock").touch()
    for attempt, hosts in ((0, (0, 1)), (10, (0,))):
        folder = tmp_path / "logs" / f"attempt-{attempt}"
        folder.mkdir(parents=True)
        for host in hosts:
            (folder / f"host-{host}.log").write_text(f"être {attempt} {host}\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "être 10 0\n"),
        (["--attempt", "0"], "être 0 0\n"),
        (["--host", "1", "--attempt", "0"], "être 0 1\n"),
    ],
    ids=["newest", "attempt", "host"],
)
def test_logs(options: list[str], text: str, directory: Path, command: Command) -> None:
    """Without options the log is host 0's of the newest attempt; it is printed as it is."""
    ended = command("logs", str(directory), *options)
    assert (ended.code, ended.out, ended.error) == (0, text, "")


def test_log_that_is_not_there(directory: Path, command: Command) -> None:
    """A log that there is none of is wrong usage; what there is, is said."""
    ended = command("logs", str(directory), "--host", "1")
    assert (ended.code, ended.out) == (2, "")
    assert "no log of host 1 in attempt 10" in ended.error
    assert "attempts 0, 10" in ended.error
    assert "hosts 0" in ended.error


def test_logs_of_a_run_that_never_started(tmp_path: Path, command: Command) -> None:
    """A directory without any log says so."""
    (tmp_path / ".lock").touch()
    ended = command("logs", str(tmp_path))
    assert (ended.code, ended.out) == (2, "")
    assert "none" in ended.error


def test_nothing_to_stop(directory: Path, command: Command) -> None:
    """Where no run is alive there is nothing to stop, which is wrong usage."""
    ended = command("stop", str(directory))
    assert (ended.code, ended.out) == (2, "")
    assert "nothing to stop" in ended.error


@pytest.mark.parametrize("name", ["logs", "stop"])
def test_no_run_directory(name: str, tmp_path: Path, command: Command) -> None:
    """A directory that holds no run is refused in the words of every command."""
    ended = command(name, str(tmp_path))
    assert (ended.code, ended.out) == (2, "")
    assert "is no run directory" in ended.error
