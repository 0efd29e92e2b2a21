"""A host that can start no trainer is said to be stuck: its pod is replaced, and on one machine the run has failed.

SIGKILL does not end its last trainer, or its devices fail again and again.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launcher.conftest import Run
from tests.launcher.pods import Pods

from shardwise.protocol.contract import HOST_LEFT, ExitCode

HELD = {"attempt": 0, "step": 7, "wait": "go"}
IMPATIENT = "hangAfter: 10s"


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """Return a job without pods; after the test nothing of it may remain."""
    some = Pods(tmp_path)
    yield some
    assert some.close() == []


def hold(directory: Path, pid: int) -> None:
    """Have a trainer stand still, and survive the SIGKILL of its agent."""
    (directory / f"held-{pid}").touch()
    os.kill(pid, signal.SIGSTOP)


@pytest.mark.parametrize("host", [0, 1])
def test_in_a_pod(pods: Pods, host: int) -> None:
    """The status names the host, its address and the process; when its pod is replaced the run goes on."""
    pods.start(recovery=IMPATIENT, faults=[HELD])
    held = pods.until_step(7)["hosts"][host]["trainerPid"]
    hold(pods.directory, held)
    pods.go_on()
    (stuck,) = pods.until(lambda status: bool(status["stuck"]))["stuck"]

    assert (stuck["host"], stuck["address"]) == (host, pods.addresses[host])
    assert f"process {held} has survived SIGKILL" in stuck["message"]
    assert "(state T, waiting in " in stuck["message"]
    pods.until(lambda status: f"waiting for host {host}; process {held}" in status["reason"])
    pods.ask_to_go(host)
    assert pods.wait(host) == HOST_LEFT
    pods.make(host)
    assert pods.codes() == [ExitCode.OK] * 2
    assert pods.record(host).restarts == {"hang": 1}
    assert [event["host"] for event in pods.events("stuck")] == [host]


@pytest.mark.parametrize("host", [0, 1])
def test_on_one_machine(run: Run, host: int) -> None:
    """There is nowhere else to go on: the run fails at once, and the process is named."""
    run.start(hosts=2, recovery=IMPATIENT, faults=[HELD])
    held = run.until_step(7)[host]["trainerPid"]
    hold(run.directory, held)
    run.go_on()

    assert run.end() == ExitCode.FAILURE
    assert f"process {held} has survived SIGKILL" in run.output
    assert (run.summary["status"], run.summary["cause"], run.summary["rank"]) == ("failed", "hostLost", host)


@pytest.mark.parametrize("host", [0, 1])
def test_devices_that_fail_twice(pods: Pods, host: int) -> None:
    """The first time may be chance. After the second one the host takes no orders, and its next pod goes on."""
    failing = [{"attempt": attempt, "rank": host, "step": 7, "exit": ExitCode.DEVICE} for attempt in range(2)]
    pods.start(faults=failing)
    (stuck,) = pods.until(lambda status: bool(status["stuck"]))["stuck"]

    assert (stuck["host"], stuck["address"]) == (host, pods.addresses[host])
    assert stuck["message"] == "its devices have failed in attempts 0, 1"
    pods.until(lambda status: f"waiting for host {host}; its devices have failed" in status["reason"])
    pods.ask_to_go(host)
    assert pods.wait(host) == HOST_LEFT
    pods.make(host)
    assert pods.codes() == [ExitCode.OK] * 2
    assert pods.record(host).restarts == {"device": 2}


def test_devices_that_fail_twice_on_one_machine(run: Run) -> None:
    """There is no other node: it is tried again, as often as the budget says."""
    failing = [{"attempt": attempt, "rank": 1, "step": 7, "exit": ExitCode.DEVICE} for attempt in range(3)]
    run.start(hosts=2, recovery="backoff: 10ms", faults=failing)

    assert run.end() == ExitCode.OK
    assert run.summary["restarts"] == {"device": 3}
