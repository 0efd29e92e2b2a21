"""A stop, whoever hears of it: everybody saves the same step, the exit code says so, and no step is made twice."""

import os
import signal
from collections.abc import Callable

from tests.cli.running import Run, Shell
from tests.hosts.conftest import agent_of

from shardwise.cli.live import ask
from shardwise.job.contract import ExitCode, Phase, Progress

STOPS: list[Callable[[Run, Progress], object]] = [
    lambda run, _: run.command.send_signal(signal.SIGTERM),
    lambda _, trainer: os.kill(agent_of(trainer.pid), signal.SIGTERM),
    lambda _, trainer: os.kill(trainer.pid, signal.SIGTERM),
    lambda run, _: ask(run.directory, "POST", "/stop"),
]


def test_stopped_again_and_again(shell: Shell, undisturbed: Run) -> None:
    """SIGTERM to the command, to an agent and to a trainer of host 1, and POST /stop, lose no step."""
    for stop in STOPS:
        run = shell.begin("stopped")
        begun = run.until_phase(Phase.STEP, rank=1)
        stop(run, run.until_phase(Phase.STEP, rank=1, step=begun.step + 2))
        assert run.wait() == ExitCode.SAVED
        assert run.summary["status"] == "stopped"
    run = shell.begin("stopped")
    summary = run.finish()

    assert summary["digest"] == undisturbed.summary["digest"]
    assert [record["step"] for record in run.records()] == list(range(1, 41))
    assert (summary["restarts"], summary["incarnations"]) == ({}, 5)


def test_stopped_before_the_first_step(shell: Shell, undisturbed: Run) -> None:
    """There is nothing to save: the run ends at once, and the next one is whole."""
    run = shell.begin("early")
    run.until_phase(Phase.COMPILE, rank=1)
    assert run.send(signal.SIGTERM) == ExitCode.SAVED
    assert (run.summary["status"], run.summary["steps"]) == ("stopped", 0)
    assert shell.finish("early")["digest"] == undisturbed.summary["digest"]
