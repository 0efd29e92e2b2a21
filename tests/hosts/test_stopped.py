"""A stop, whoever hears of it: everybody saves the same step, the exit code says so, and no step is made twice.

Only here the trainers agree on a step through the mesh itself; the launcher's own tests of stops have fakes that obey.
"""

import os
import signal
from collections.abc import Callable

from tests.cli.running import Run
from tests.cli.shell import Shell
from tests.hosts.conftest import STEPS, agent_of

from shardwise.protocol.contract import ExitCode, Phase, Progress

STOPS: list[Callable[[Progress], object]] = [
    lambda trainer: os.kill(agent_of(trainer.pid), signal.SIGTERM),
    lambda trainer: os.kill(trainer.pid, signal.SIGTERM),
]
"""Of an agent and a trainer. What the command does at a SIGTERM is what `shardwise stop` does, which is in test_ray."""


def test_stopped_again_and_again(shell: Shell, undisturbed: Run) -> None:
    """SIGTERM to an agent and to a trainer of host 1 lose no step.

    To the command it comes before the first step: there is nothing to save, the run ends at once, and the next one is
    whole.
    """
    run = shell.begin("stopped")
    assert run.stop(Phase.COMPILE, rank=1) == ExitCode.SAVED
    assert (run.summary["status"], run.summary["steps"]) == ("stopped", 0)
    for stop in STOPS:
        run = shell.begin("stopped")
        begun = run.until_phase(Phase.STEP, rank=1)
        stop(run.until_phase(Phase.STEP, rank=1, step=begun.step + 1))
        assert run.wait() == ExitCode.SAVED
        assert run.summary["status"] == "stopped"
    summary = shell.finish("stopped")

    assert summary["digest"] == undisturbed.summary["digest"]
    assert [record["step"] for record in run.records()] == list(range(1, STEPS + 1))
    assert (summary["restarts"], summary["attempts"]) == ({}, 2 + len(STOPS))
