"""What a person sees who looks at the terminal while a run goes on: one line, which is gone at the end."""

import os
import pty
import re
import select
import signal
import time

from tests.launcher.conftest import LIMIT_SECONDS, Run

from shardwise.protocol.contract import Control, ExitCode

HELD = {"step": 7, "wait": "go"}
STANDING = re.compile(rb"running  step 7 of [0-9,]+  loss 0[.]14")
LINE = re.compile(rb"step [0-9,]+ of [0-9,]+")
ERASED = b"\x1b[2K"
"""What a terminal is told to clear a line."""


def shown_until(terminal: int, words: re.Pattern[bytes] | None) -> bytes:
    """Return what is shown up to these words, or up to the end."""
    end, shown = time.monotonic() + LIMIT_SECONDS, b""
    while words is None or not words.search(shown):
        assert time.monotonic() < end, shown.decode()
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # the other end is closed, and nothing is left
                break
    return shown


def test_line_of_a_live_run(run: Run) -> None:
    """While the run goes on the line says how it stands, below the log; at the end it is erased."""
    ours, theirs = pty.openpty()
    try:
        run.start(hosts=2, stdout=theirs, faults=[HELD])
        os.close(theirs)
        before = shown_until(ours, STANDING)
        run.go_on()
        after = shown_until(ours, None)
    finally:
        os.close(ours)

    assert run.end() == ExitCode.OK
    assert b'"step": 7' in before
    *_, drawn_last = LINE.finditer(before + after)
    assert ERASED in (before + after)[drawn_last.end() :]


def test_a_line_that_fails(run: Run) -> None:
    """What goes wrong with the line is told with its traceback, and costs the run nothing."""
    ours, theirs = pty.openpty()
    try:
        run.start(stdout=theirs, lineFails=True)
        os.close(theirs)
        shown_until(ours, None)
    finally:
        os.close(ours)

    assert run.end() == ExitCode.OK
    assert "the line with the status has failed" in run.output
    assert "TypeError: no line of quickstart" in run.output


def test_a_terminal_that_is_closed(run: Run) -> None:
    """The kernel tells the command, which can show nothing more: the run is saved where it stands, and stopped."""
    ours, theirs = pty.openpty()
    run.start(hosts=2, stdout=theirs, stderr=theirs, on_terminal=True, saveEvery=None, faults=[HELD])
    os.close(theirs)
    shown_until(ours, STANDING)
    os.close(ours)
    run.go_on(heard=Control.STOP)

    assert run.end() == ExitCode.SAVED
    assert (run.summary["status"], run.summary["restarts"]) == ("stopped", {})
    assert (run.directory / "checkpoints" / f"step-{run.summary['steps']:08}" / "COMMITTED").exists()


def test_a_terminal_that_is_closed_under_nohup(run: Run) -> None:
    """Whoever has the command ignore that has it go on to the end."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which the command inherits
    try:
        run.start(hosts=2, faults=[HELD])
    finally:
        signal.signal(signal.SIGHUP, before)
    run.until_step(7)
    run.command.send_signal(signal.SIGHUP)
    run.go_on()

    assert run.end() == ExitCode.OK
    assert run.summary["status"] == "complete"
