"""What a person sees who looks at the terminal while a run goes on: one line, which is gone at the end."""

import os
import pty
import re
import select
import time

from tests.launcher.conftest import LIMIT_SECONDS, Run

from shardwise.protocol.contract import ExitCode

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
