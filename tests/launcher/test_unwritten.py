"""A run whose own output cannot be written: it goes on, and nothing is lost but what would have been shown."""

import os

import pytest
from tests.launcher.conftest import Run

from shardwise.protocol.contract import ExitCode

FAILING = {"step": 3, "attempt": 0, "say": "error: of a trainer", "exit": 1}
HELD = {"step": 7, "wait": "go"}
SAID = "cannot be written ({}); nothing more is shown there, and the run goes on"


@pytest.mark.parametrize(("stdout", "stderr"), [(True, False), (False, True), (True, True)])
def test_a_full_disk(run: Run, *, stdout: bool, stderr: bool) -> None:
    """The run is as complete as any other, whichever of its streams lies on a full disk; the other one says so."""
    full = os.open("/dev/full", os.O_WRONLY)
    run.start(faults=[FAILING], stdout=full if stdout else None, stderr=full if stderr else None)
    os.close(full)

    assert run.end() == ExitCode.OK
    assert (run.summary["status"], run.summary["steps"], run.summary["restarts"]) == ("complete", 30, {"failure": 1})
    assert run.output.count(SAID.format("No space left on device")) == (stdout != stderr)
    assert "Traceback" not in run.output


def test_a_reader_that_leaves(run: Run) -> None:
    """A pipe that is closed by what has read enough, such as head, ends no run; that no more is shown is said once."""
    ours, theirs = os.pipe()
    run.start(faults=[HELD], stdout=theirs)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        assert '"event": "started"' in pipe.readline()
    run.go_on()

    assert run.end() == ExitCode.OK
    assert (run.summary["status"], run.summary["steps"]) == ("complete", 30)
    assert run.output == f"standard output {SAID.format('Broken pipe')}\n"


def test_a_terminal_that_is_closed(run: Run) -> None:
    """The live line goes with its terminal, and the run stays."""
    ours, theirs = os.openpty()
    run.start(faults=[HELD], stdout=theirs)
    os.close(theirs)
    run.until_step(7)
    os.close(ours)
    run.go_on()

    assert run.end() == ExitCode.OK
    assert (run.summary["status"], run.summary["steps"]) == ("complete", 30)
    assert run.output == f"standard output {SAID.format('Input/output error')}\n"
