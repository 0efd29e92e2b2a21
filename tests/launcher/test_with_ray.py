"""The launcher with the real Ray between its hosts; the trainers are still fakes.

Only here a leader or a pod dies while Ray is up and nothing is trained: what Ray does then, apart from what JAX does.
"""

import functools
import os
import signal
from pathlib import Path
from typing import Any

import psutil
from tests.launcher.conftest import Run
from tests.launcher.pods import Pods

from shardwise.launcher.ray.node import RAY_VARIABLE
from shardwise.launcher.system import processes
from shardwise.protocol.contract import ExitCode

HELD = {"attempt": 0, "step": 7, "wait": "go"}


def parts_of_ray(run: Run, name: str) -> list[int]:
    """Return the processes of Ray with this name."""
    carrying = processes.carrying({processes.RUN_VARIABLE: str(run.directory)})
    found = [psutil.Process(identity.pid) for identity in carrying]
    return [process.pid for process in found if RAY_VARIABLE in process.environ() and process.name() == name]


def _in_session(session: int, status: dict[str, Any]) -> bool:
    return bool(status["raySession"] == session and len(status["hosts"]) == 2)


def test_ray_killed_then_a_trainer(run: Run) -> None:
    """Training goes on when Ray dies on a host and at its head; what ends later is found through the next session."""
    run.start(hosts=2, ray=True, faults=[HELD, {"attempt": 1, "step": 12, "wait": "further"}])
    before = run.until_step(7)
    for part, session in (("raylet", 2), ("gcs_server", 3)):
        os.kill(parts_of_ray(run, part)[-1], signal.SIGKILL)
        status = run.until(functools.partial(_in_session, session))
        assert [host["trainerPid"] for host in status["hosts"]] == [host["trainerPid"] for host in before]
    os.kill(before[1]["trainerPid"], signal.SIGKILL)
    run.go_on()
    after = run.until_step(12, attempt=1)
    (run.directory / "further").touch()

    assert run.end() == ExitCode.OK
    assert [host["agentPid"] for host in after] == [host["agentPid"] for host in before]
    assert run.summary["restarts"] == {"failure": 1}


def test_leader_killed(run: Run) -> None:
    """A lost host 0 takes Ray's head with it; its successor opens a session of its own, and the run goes on."""
    run.start(hosts=2, ray=True, faults=[HELD])
    before = run.until_step(7)
    os.kill(before[0]["agentPid"], signal.SIGKILL)
    run.go_on()

    assert run.end() == ExitCode.OK
    assert run.summary["restarts"] == {"hostLost": 1}


def test_pod_killed(tmp_path: Path) -> None:
    """Pods have addresses of their own: Ray finds the successor of host 0 under another one."""
    pods = Pods(tmp_path)
    pods.options = {"ray": True}
    pods.start(faults=[HELD])
    pods.until_step(7)
    pods.kill(0)
    pods.make(0)
    pods.go_on()

    assert pods.codes() == [ExitCode.OK] * 2
    assert pods.record(1).restarts == {"hostLost": 1}
    assert pods.close() == []
