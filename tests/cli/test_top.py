"""shardwise.cli.top: a run watched in a terminal, and printed once where there is none."""

import os
import pty
import select
import subprocess
from pathlib import Path

from tests.cli.conftest import COMMAND, Command, person
from tests.cli.test_status import Held
from tests.page.building import make_run

LIMIT_SECONDS = 120.0  # before the test gives up
ANOTHER_SCREEN, BACK = b"\x1b[?1049h", b"\x1b[?1049l"


def test_printed_once_without_a_terminal(tmp_path: Path, command: Command) -> None:
    """Into a pipe the screen is printed once, also of a live run, without anything that steers a terminal."""
    directory = make_run(tmp_path / "run")
    with Held(directory):
        ended = command("top", str(directory))
    assert (ended.code, ended.error) == (0, "")
    assert "loss 60.0000" in ended.out
    assert "\x1b" not in ended.out


def test_logs_are_not_read(tmp_path: Path, command: Command) -> None:
    """Of a run of 1,024 hosts they would be a listing and 32 files each second, for a screen that shows none."""
    directory = make_run(tmp_path / "run")
    for log in (directory / "logs").glob("attempt-*/host-*.log"):
        log.unlink()
        log.mkdir()  # reading one would fail, whoever reads
    ended = command("top", str(directory))
    assert (ended.code, ended.error) == (0, "")
    assert "loss 60.0000" in ended.out


def test_watched_until_it_ends(tmp_path: Path) -> None:
    """In a terminal a live run has a screen of its own that follows its steps; at its end the last one stays."""
    directory = make_run(tmp_path / "run")
    above, below = pty.openpty()
    seen = b""

    def until(wanted: bytes) -> None:
        nonlocal seen
        while wanted not in seen:
            assert select.select([above], [], [], LIMIT_SECONDS)[0], seen
            seen += os.read(above, 65536)

    with Held(directory):
        environment = {**person(tmp_path / "cache"), "TERM": "xterm", "LINES": "40"}
        watching = subprocess.Popen(
            [*COMMAND, "top", str(directory), "--every", "0.1"],
            env=environment,
            stdin=below,
            stdout=below,
            stderr=below,
        )
        os.close(below)
        until(b"60.0000")
        assert ANOTHER_SCREEN in seen
        assert BACK not in seen
        with (directory / "metrics.jsonl").open("a", encoding="utf-8") as metrics:
            metrics.write('{"step": 7, "loss": 3.25}\n')
        until(b"3.2500")
    until(BACK)
    seen = seen.split(BACK)[1]
    until(b"3.2500")
    assert watching.wait() == 0
    os.close(above)


def test_no_run_directory(tmp_path: Path, command: Command) -> None:
    """A directory that holds no run is refused in the words of every command."""
    ended = command("top", str(tmp_path))
    assert (ended.code, ended.out) == (2, "")
    assert "is no run directory" in ended.error
