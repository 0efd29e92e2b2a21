"""A stop, whoever it is asked of: everybody saves at the same step, and ends with the exit code that says so."""

import os
import signal
from collections.abc import Callable

import pytest
from tests.launcher.conftest import Run

from shardwise.protocol.contract import Control, ExitCode

HELD = {"attempt": 0, "step": 7, "wait": "go"}

ASKED: dict[str, Callable[[Run], object]] = {
    "command": lambda run: run.command.send_signal(signal.SIGTERM),
    "terminal that is closed": lambda run: run.command.send_signal(signal.SIGHUP),
    "terminal": lambda run: run.command.send_signal(signal.SIGINT),
    "leader": lambda run: os.kill(run.until_step(7)[0]["agentPid"], signal.SIGTERM),
    "agent": lambda run: os.kill(run.until_step(7)[1]["agentPid"], signal.SIGTERM),
    "trainer": lambda run: os.kill(run.until_step(7)[1]["trainerPid"], signal.SIGTERM),
    "request": lambda run: run.ask("POST", "/stop"),
}


@pytest.mark.parametrize("whom", ASKED)
def test_stop(run: Run, whom: str) -> None:
    """The run is saved where it stands, and the same command goes on from there."""
    run.start(hosts=2, saveEvery=None, faults=[HELD])
    run.until_step(7)
    ASKED[whom](run)
    run.go_on(heard=Control.STOP)

    assert run.end() == ExitCode.SAVED
    assert run.summary["status"] == "stopped"
    assert run.summary["restarts"] == {}
    stopped = run.summary["steps"]
    assert (run.directory / "checkpoints" / f"step-{stopped:08}" / "COMMITTED").exists()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_leader_that_is_lost_after_it_was_told(run: Run, how: signal.Signals) -> None:
    """Its successor knows: whoever asked need not ask again, and no other attempt begins."""
    run.start(hosts=2, faults=[HELD])
    before = run.until_step(7)
    run.command.send_signal(how)
    run.until(lambda status: status["phase"] == "stopping")
    os.kill(before[0]["agentPid"], signal.SIGKILL)

    assert run.end() == ExitCode.SAVED
    assert "stopped, but the last save may be missing: host 0 went away; the same command goes on" in run.output
    assert (run.summary["status"], run.summary["attempts"]) == ("stopped", 1)
    run.go_on()
    run.again()
    assert run.end() == ExitCode.OK
    assert run.summary["attempts"] == 2


@pytest.mark.parametrize("deaf", [False, True])
def test_before_the_first_step(run: Run, deaf: bool) -> None:  # noqa: FBT001  a table's column
    """There is nothing to save: the trainers end at once, also those that are too busy to hear it."""
    run.start(hosts=2, deaf=deaf, faults=[{"phase": "compile", "wait": "go"}])
    run.until(lambda status: [host["phase"] for host in status["hosts"]] == ["compile", "compile"])
    run.command.send_signal(signal.SIGTERM)

    assert run.end() == ExitCode.SAVED
    assert run.summary["status"] == "stopped"
    assert run.summary["restarts"] == {}


def test_deadline(run: Run) -> None:
    """The time that a job may take counts from the command's start, and ends as a stop does: saved."""
    run.start(hosts=2, saveEvery=None, deadline="8s", steps=1_000_000, stepSeconds=0.05)

    assert run.end() == ExitCode.SAVED
    assert (run.summary["status"], run.summary["restarts"]) == ("stopped", {})
    assert sum(run.summary["goodput"].values()) >= 8


def test_deadline_before_the_hosts_are_there(run: Run) -> None:
    """A deadline that passes while hosts are waited for ends the run without a trainer."""
    run.start(hosts=2, deadline="1ms")

    assert run.end() == ExitCode.SAVED
    assert "the deadline has passed" in run.output
    assert run.summary["attempts"] == 0


def test_second_interrupt(run: Run) -> None:
    """A second Ctrl-C waits for nothing; the first says so, and the end says what it has cost."""
    run.start(faults=[HELD])
    run.until_step(7)
    run.command.send_signal(signal.SIGINT)
    run.until(lambda status: status["phase"] == "stopping")
    assert run.output.count("stopping, which saves first; Ctrl-C once more ends it without that save") == 1
    run.command.send_signal(signal.SIGINT)

    assert run.end() == ExitCode.FAILURE
    said = "ended by a second Ctrl-C, without the save; the same command goes on from the last checkpoint"
    assert said in run.output.splitlines()[-1]
