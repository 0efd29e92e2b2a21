"""Tasks of Ray: no cluster is there, a driver is killed. `tests/train/data/test_store_processes.py` runs tasks."""

import subprocess
import sys

import psutil
import pytest

from shardwise.launcher.ray.tasks import tasks_of_cluster
from shardwise.launcher.system.ports import free_port
from shardwise.protocol.errors import UsageError

DRIVER = """
import subprocess, sys, time, psutil
from shardwise.launcher.ray import tasks

raylet = subprocess.Popen(["/bin/sh", "-c", "read -r line; sleep 1000 & wait"], stdin=subprocess.PIPE)
with tasks._guarded_by_a_shell():
    raylet.stdin.write(b"go\\n")
    raylet.stdin.flush()
    while not (started := psutil.Process(raylet.pid).children()):
        time.sleep(0.01)
    print(raylet.pid, started[0].pid, flush=True)
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
    """After kill -9 nothing stays of a process that was there, nor of its child that came later and has no task yet."""
    command = [sys.executable, "-c", DRIVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        of_ray = [psutil.Process(int(number)) for number in driver.stdout.readline().split()]
        driver.kill()

    assert len(of_ray) == 2
    _, there = psutil.wait_procs(of_ray, timeout=30)
    try:
        assert [each for each in there if each.status() != psutil.STATUS_ZOMBIE] == []
    finally:
        for each in there:
            each.kill()
