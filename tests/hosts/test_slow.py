"""A host that is slow by itself: named while it is, ended never, and the numbers stay the same."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.running import Run, Shell

from shardwise.job.contract import ExitCode
from shardwise.launcher.stragglers import MEASUREMENTS

ALTERNATE = """
import contextlib, os, signal, sys, time
pid = int(sys.argv[1])
with contextlib.suppress(PermissionError):  # ahead of all others, so that a turn stays short on a busy machine too
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
while True:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.004)
    until = time.perf_counter() + 0.001
    os.kill(pid, signal.SIGCONT)
    while time.perf_counter() < until:
        pass
"""
"""Lets a process run now and then, in turns far shorter than a measurement."""


def measured_often(run: Run) -> bool:
    """Whether enough is known of both ranks to call one of them slow."""
    words = [run.progress(rank) for rank in (0, 1)]
    return all(word is not None and word.measured > MEASUREMENTS for word in words)


@contextmanager
def throttled(pid: int) -> Iterator[None]:
    """Slow a process down. What does it is a process too: a thread of this one would be held up by the others."""
    alternating = subprocess.Popen([sys.executable, "-c", ALTERNATE, str(pid)])
    try:
        yield
    finally:
        alternating.kill()
        alternating.wait()
        os.kill(pid, signal.SIGCONT)


def test_slow_host(shell: Shell, undisturbed: Run) -> None:
    """Of two equal hosts nobody is slow; one that gets a fifth of its time is named until it gets all of it again."""
    run = shell.begin("slow", "training.steps=1000000", "training.checkpoint.everySteps=1000000")
    run.until(lambda: measured_often(run))
    # On a machine with too much to do one of two that share it may be the slow one for a while.
    before = run.until_status(lambda status: status["slowestHost"] is None)

    with throttled(before["hosts"][1]["trainerPid"]):
        run.until_status(lambda status: status["slowestHost"] == 1)
    after = run.until_status(lambda status: status["slowestHost"] is None)

    assert [host["trainerPid"] for host in after["hosts"]] == [host["trainerPid"] for host in before["hosts"]]
    event = run.events("slow")[-1]
    assert event["host"] == 1
    assert "its devices take" in event["words"]
    assert run.send(signal.SIGTERM) == ExitCode.SAVED
    assert run.summary["restarts"] == {}
    losses = [record["loss"] for record in undisturbed.records()]
    assert [record["loss"] for record in run.records()][: len(losses)] == losses
