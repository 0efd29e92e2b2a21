"""A second kill while the recovery from the first is under way: whom it hits, the run goes on, and ends as ever.

Only here the recovery itself is hit: a run that is half back has neither its old processes nor all of its new ones.
"""

import os
import signal

import pytest
from tests.cli.running import Run
from tests.cli.shell import Shell
from tests.hosts.conftest import agent_of
from tests.hosts.disturbing import end_host, in_phase

from shardwise.protocol.contract import Phase, Progress


def ended(run: Run, times: int) -> None:
    """Wait until the leader has seen so many bad ends, and so is about to start all trainers again."""
    run.until(lambda: len(run.events("ended")) >= times)


def stepping_again(run: Run) -> Progress:
    """Wait until rank 0 has taken two steps more, in whatever attempt follows; its word."""
    run.until(lambda: run.progress() is not None)  # it lies where the status says, which a new leader moves
    before = run.progress()
    assert before is not None
    word = before

    def there() -> bool:
        nonlocal word
        word = run.progress() or before
        return word.attempt > before.attempt and word.phase == Phase.STEP and word.dispatched > word.step > 0

    run.until(there)
    return in_phase(Phase.STEP, rank=0, further=2)(run, word.attempt)


@pytest.mark.long
def test_killed_twice(shell: Shell, digest: str) -> None:
    """A trainer, and the agent that is to start the next one; all trainers, and then the leader with its whole host."""
    run = shell.begin("twice")
    word = in_phase(Phase.STEP, rank=1, further=6)(run, 0)
    other = agent_of(word.pid)
    os.kill(word.pid, signal.SIGKILL)
    ended(run, 1)
    os.kill(other, signal.SIGKILL)

    stepping_again(run)
    before = len(run.events("ended"))
    for trainer in [each.pid for rank in range(2) if (each := run.progress(rank))]:
        os.kill(trainer, signal.SIGKILL)
    ended(run, before + 1)
    end_host(run, 0)
    summary = run.finish()

    assert summary["digest"] == digest
    # A host that is lost before the trainers have started again has ended none: that is one restart with the first.
    assert set(summary["restarts"]) <= {"failure", "hostLost"}
    assert summary["restarts"]["failure"] == 2
    assert sum(summary["restarts"].values()) < summary["attempts"] <= 6
    assert run.records("restored")[-1]["step"] > 0
