"""Killed at any moment, a run ends with the digest of one that nothing disturbed.

Where a trainer is killed the run goes on by itself; where everything is killed, with the same command.

Only here a run of one host is killed, which has no Ray and no peer to notice it, a half-written save included.
"""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.cli.damaging import committed, damage
from tests.cli.running import Run
from tests.cli.shell import EVALUATED, Shell

from shardwise.protocol.contract import ExitCode, Phase, checkpoint_step

STEPS = 46  # many more than all kills need, also of a machine that is slow to kill
CHANGES = (f"training.steps={STEPS}", "training.checkpoint={everySteps: 3, keep: {last: 20}}")

MOMENTS: dict[str, Callable[[Run], object]] = {
    "start": lambda run: run.until(lambda: run.progress() is not None),
    "compile": lambda run: run.until_phase(Phase.COMPILE),
    "first step": lambda run: run.until_phase(Phase.STEP),
    "step": lambda run: run.until_phase(Phase.STEP, step=8),
    "restore": lambda run: run.until_phase(Phase.RESTORE),
    "save": lambda run: run.until_phase(Phase.SAVE),
    "half written": lambda run: run.until_writing(),
}


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Return a folder for plain runs; at the end nothing of them may remain."""
    with Shell(tmp_path_factory.mktemp("kill"), tmp_path_factory.getbasetemp() / "cache", CHANGES) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(shell: Shell) -> dict[str, Any]:
    """Return the summary of the run that nothing disturbed."""
    return shell.finish("undisturbed")


def test_everything_killed_and_run_again(shell: Shell, undisturbed: dict[str, Any]) -> None:
    """SIGKILL of the command and all of its processes, at each moment in turn, changes nothing of the end.

    The last time a byte of the newest checkpoint is changed too: the run goes on from the one before, and writes it
    again.
    """
    for moment in MOMENTS.values():
        run = shell.begin("killed")
        moment(run)
        run.kill()
    run = shell.begin("killed")
    run.until_committed()
    run.kill()
    newest = committed(run)[-1]
    victim = max((path for path in newest.glob("arrays/**/*") if path.is_file()), key=lambda path: path.stat().st_size)
    damaged = damage(victim)
    summary = shell.finish("killed")

    assert summary["digest"] == undisturbed["digest"]
    assert summary["initialDigest"] == undisturbed["initialDigest"]
    assert summary["finalLoss"] == undisturbed["finalLoss"]
    assert summary["restarts"] == {}
    assert f"checkpoint of step {checkpoint_step(newest.name)} refused" in run.output
    assert run.records("restored")[-1]["step"] < int(newest.name.removeprefix("step-"))
    assert victim.read_bytes() != damaged


def test_trainer_killed(shell: Shell, undisturbed: dict[str, Any]) -> None:
    """SIGKILL of the trainer at each moment in turn: the same command brings the run to the same end by itself.

    It evaluates, and is killed in that as well: evaluation touches no state.
    """
    moments = [*MOMENTS.values(), Run.until_committed, _evaluating]
    run = shell.begin("trainer", EVALUATED)
    for attempt, moment in enumerate(moments):
        run.until(lambda attempt=attempt: _attempt(run) == attempt)  # type: ignore[misc]
        moment(run)
        word = run.progress()
        assert word is not None
        os.kill(word.pid, signal.SIGKILL)
    summary = run.finish()

    assert summary["digest"] == undisturbed["digest"]
    assert summary["initialDigest"] == undisturbed["initialDigest"]
    assert summary["finalLoss"] == undisturbed["finalLoss"]
    assert summary["restarts"] == {"failure": len(moments)}
    assert [event["exit"] for event in run.events("ended")] == ["signal SIGKILL"] * len(moments)
    evaluated = {event["step"]: event["heldOutLoss"] for event in run.records("evaluated")}
    assert sorted(evaluated) == list(range(4, STEPS, 4))
    assert evaluated[28] < evaluated[4]


@pytest.mark.usefixtures("undisturbed")
def test_adapters_killed(shell: Shell) -> None:
    """A run that trains adapters goes on likewise; the weights that they are for are read anew each time."""
    words = (f"training.startFrom={{path: undisturbed, step: {STEPS}}}", "training.lora.rank=2")
    expected = shell.finish("adapters", *words)
    moments = ("restore", "step", "half written")
    run = shell.begin("adapters killed", *words)
    for attempt, moment in enumerate(moments):
        run.until(lambda attempt=attempt: _attempt(run) == attempt)  # type: ignore[misc]
        MOMENTS[moment](run)
        word = run.progress()
        assert word is not None
        os.kill(word.pid, signal.SIGKILL)
    summary = run.finish()

    assert summary["restarts"] == {"failure": len(moments)}
    assert summary["digest"] == expected["digest"]
    assert summary["finalLoss"] == expected["finalLoss"]


def test_sigterm_loses_no_step(shell: Shell, undisturbed: dict[str, Any]) -> None:
    """A stop saves the step it reaches; the next start goes on from exactly there, repeating none.

    While the programs are compiled there is nothing to save: the run ends at once, and the next one is whole.
    """
    run = shell.begin("stop")
    assert run.stop(Phase.COMPILE) == ExitCode.SAVED
    assert (run.summary["status"], run.summary["steps"]) == ("stopped", 0)
    run = shell.begin("stop")
    assert run.stop(step=5) == ExitCode.SAVED
    summary = shell.finish("stop")

    assert [record["step"] for record in run.records()] == list(range(1, STEPS + 1))
    assert summary["digest"] == undisturbed["digest"]


def _evaluating(run: Run) -> None:
    run.until_phase(Phase.EVALUATE)


def _attempt(run: Run) -> int | None:
    word = run.progress()
    return word.attempt if word else None
