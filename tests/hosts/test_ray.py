"""A run whose Ray is killed piece by piece while a person looks at it with `status`, `logs` and `stop`.

Only here the real Ray dies piece by piece under real trainers, which must not notice.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import psutil
from tests.cli.conftest import COMMAND
from tests.cli.running import Run
from tests.cli.shell import Shell

from shardwise.launcher.ray.node import RAY_VARIABLE
from shardwise.launcher.system import processes
from shardwise.protocol.contract import ExitCode


def part_of_ray(run: Run, host: int, named: Callable[[str], bool]) -> int:
    """Return the process of Ray on this host whose name fits."""
    carrying = processes.carrying(processes.mark(run.directory, host))
    found = [psutil.Process(identity.pid) for identity in carrying]
    [pid] = [one.pid for one in found if RAY_VARIABLE in one.environ() and named(" ".join(one.cmdline()[:1]))]
    return pid


def shardwise(run: Run, *words: str) -> str:
    """Return what a command says of the run."""
    command = [*COMMAND, words[0], str(run.directory), *words[1:]]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def both_step(session: int, step: int = 1) -> Callable[[dict[str, Any]], bool]:
    """Return the condition that both hosts are past a step, and reached through this Ray session."""

    def condition(status: dict[str, Any]) -> bool:
        steps = [host["step"] for host in status["hosts"] if host["trainerPid"]]
        return status["raySession"] == session and len(steps) == 2 and min(steps) >= step

    return condition


def test_ray_killed_part_by_part(shell: Shell, undisturbed: Run) -> None:
    """Losing a raylet, the head or an actor stops no training and loses no step; commands go on being answered."""
    run = shell.begin("ray", "training.steps=1000000", "training.checkpoint.everySteps=1000000")
    before = run.until_status(both_step(1))
    status = before
    parts: list[Callable[[], int]] = [
        lambda: part_of_ray(run, 1, lambda name: name.endswith("/raylet")),
        lambda: part_of_ray(run, 0, lambda name: name.endswith("/gcs_server")),
        lambda: part_of_ray(run, 1, lambda name: name.startswith("ray::")),
    ]
    for session, part in enumerate(parts, start=2):
        os.kill(part(), signal.SIGKILL)
        status = run.until_status(both_step(session, status["hosts"][0]["step"] + 1))
        assert [host["trainerPid"] for host in status["hosts"]] == [host["trainerPid"] for host in before["hosts"]]

    known = json.loads(shardwise(run, "status", "--json"))
    assert (known["status"], known["phase"], known["attempt"], known["restarts"]) == ("running", "running", 0, {})
    assert [host["agentPid"] for host in known["hosts"]] == [host["agentPid"] for host in before["hosts"]]
    assert "step 1/1000000" in shardwise(run, "logs")
    assert "step 1/1000000" not in shardwise(run, "logs", "--host", "1", "--attempt", "0")
    assert "stopped" in shardwise(run, "stop")
    assert run.wait() == ExitCode.SAVED
    summary = run.summary
    assert (summary["status"], summary["restarts"], summary["attempts"]) == ("stopped", {}, 1)
    assert [record["step"] for record in run.records()] == list(range(1, summary["steps"] + 1))
    losses = [record["loss"] for record in undisturbed.records()]
    assert [record["loss"] for record in run.records()][: len(losses)] == losses
    assert [event["step"] for event in run.records("saved")] == [summary["steps"]]


def test_nothing_of_ray_is_shown(undisturbed: Run) -> None:
    """What a person sees is the trainer's and the launcher's: neither Ray nor the transport between devices speaks."""
    assert "ray" not in undisturbed.output.lower().replace("array", "")
    assert "gloo" not in undisturbed.output.lower()
    assert signal.SIGKILL.name not in undisturbed.output
