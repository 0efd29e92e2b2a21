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
import os, signal, sys, time
pid = int(sys.argv[1])
while True:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.005)
    until = time.perf_counter() + 0.0005
    os.kill(pid, signal.SIGCONT)
    while time.perf_counter() < until:
        pass
"""
"""Lets a process run now and then, in turns far shorter than a measurement, also on a busy machine."""


def measured(run: Run, times: int) -> None:
    """Wait until every rank was measured so often once more."""
    words = [run.progress(rank) for rank in (0, 1)]
    wanted = [(word.measured if word else 0) + times for word in words]

    def there() -> bool:
        now = [run.progress(rank) for rank in (0, 1)]
        return all(word is not None and word.measured >= least for word, least in zip(now, wanted, strict=True))

    run.until(there)


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
    """Of two equal hosts nobody is slow; one that gets a tenth of its time is named until it gets all of it again."""
    run = shell.begin("slow", "training.steps=1000000", "training.checkpoint.everySteps=1000000")
    before = run.until_status(lambda status: len(status["hosts"]) == 2 and status["progress"].get("step", 0) > 0)
    measured(run, MEASUREMENTS + 1)
    assert run.events("slow") == []

    with throttled(before["hosts"][1]["trainerPid"]):
        run.until_status(lambda status: status["slowestHost"] == 1)
    after = run.until_status(lambda status: status["slowestHost"] is None)

    assert [host["trainerPid"] for host in after["hosts"]] == [host["trainerPid"] for host in before["hosts"]]
    [event] = run.events("slow")
    assert event["host"] == 1
    assert "its devices take" in event["words"]
    assert run.send(signal.SIGTERM) == ExitCode.SAVED
    assert run.summary["restarts"] == {}
    losses = [record["loss"] for record in undisturbed.records()]
    assert [record["loss"] for record in run.records()][: len(losses)] == losses
