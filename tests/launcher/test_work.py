"""Before the first step: a trainer that works is left to it, however long; one that was stopped is ended."""

import signal

from tests.launcher.conftest import Run

from shardwise.protocol.contract import ExitCode

HANG_AFTER_SECONDS = 6


def test_a_long_compilation(run: Run) -> None:
    """One that takes twice as long as `hangAfter` is neither stalled nor ended, and the others wait for it."""
    work = {"phase": "compile", "rank": 1, "work": "go"}
    run.start(hosts=2, recovery=f"hangAfter: {HANG_AFTER_SECONDS}s", faults=[work])
    status = run.until(lambda status: all(host["ageSeconds"] > 2 * HANG_AFTER_SECONDS for host in status["hosts"]))

    assert status["phase"] == "starting"
    run.go_on()
    assert run.end() == ExitCode.OK
    assert run.summary["restarts"] == {}


def test_a_compilation_that_was_stopped(run: Run) -> None:
    """A trainer that the kernel holds in its compilation is named, and the run goes on without it."""
    stop = {"attempt": 0, "phase": "compile", "rank": 1, "signal": signal.SIGSTOP}
    run.start(hosts=2, recovery=f"hangAfter: {HANG_AFTER_SECONDS}s", faults=[stop])

    assert run.end() == ExitCode.OK
    assert run.summary["restarts"] == {"hang": 1}
    assert "rank 1 holds it up" in run.output
