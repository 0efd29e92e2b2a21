"""Tasks of Ray: no cluster is there, a driver is killed. `tests/train/data/test_store_processes.py` runs tasks."""

import subprocess
import sys

import psutil
import pytest

from shardwise.launcher.ray.tasks import tasks_of_cluster
from shardwise.launcher.system.ports import free_port
from shardwise.protocol.errors import UsageError

# What stands in for a raylet starts a worker once it is told to. It ends with its input, as Ray's ends with its driver.
DRIVER = """
import subprocess, sys, time, psutil
from shardwise.launcher.ray import tasks

acts = "read -r go; RAY_RAYLET_PID=$$ sleep 1000 & read -r end"
raylet = subprocess.Popen(["/bin/sh", "-c", acts], stdin=subprocess.PIPE)
with tasks._guarded_by_a_shell():
    raylet.stdin.write(b"go\\n")
    raylet.stdin.flush()
    while not (started := psutil.Process(raylet.pid).children()):
        time.sleep(0.01)
    print(started[0].pid, flush=True)
    sys.stdin.readline()
    raylet.stdin.close()
    raylet.wait()
    print("raylet gone", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("address", ["silent", "no-address"])
def test_a_cluster_that_does_not_answer_is_a_mistake_of_the_command(address: str) -> None:
    """It is refused at once, with what is expected; Ray is not asked."""
    if address == "silent":
        address = f"127.0.0.1:{free_port('127.0.0.1')}"
    with (
        pytest.raises(UsageError, match=f"--ray-address '{address}': .*; expected the address of the head"),
        tasks_of_cluster(address, None),
    ):
        pass


def test_a_killed_driver_takes_with_it_what_was_started_since() -> None:
    """After kill -9 no worker stays that was started later and has no task yet, also if its raylet was gone first."""
    command = [sys.executable, "-c", DRIVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        worker = psutil.Process(int(driver.stdout.readline()))
        driver.stdin.write("\n")
        driver.stdin.flush()
        assert driver.stdout.readline() == "raylet gone\n"
        assert worker.is_running()
        driver.kill()

    try:
        psutil.wait_procs([worker], timeout=30)
        assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    finally:
        if worker.is_running():
            worker.kill()
