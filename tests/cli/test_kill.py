"""Killed at any moment, a run ends with the digest of one that nothing disturbed.

Where a trainer is killed the run goes on by itself; where everything is killed, with the same command.
"""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.cli.running import Run, Shell

from shardwise.job.contract import ExitCode, Phase

CHANGES = (
    "training.steps=30",
    "training.checkpoint={everySteps: 3, keep: {last: 12}}",
    "recovery={restarts: {failure: 20}, backoff: 10ms}",
)
EVALUATED = (
    "training.data.train.0.paths=[documents.jsonl]",
    "training.data.heldOut=0.3",
    "training.evaluation={everySteps: 2, batches: 4}",
)

MOMENTS: dict[str, Callable[[Run], object]] = {
    "start": lambda run: run.until(lambda: run.progress() is not None),
    "compile": lambda run: run.until_phase(Phase.COMPILE),
    "first step": lambda run: run.until_phase(Phase.STEP),
    "step": lambda run: run.until_phase(Phase.STEP, step=8),
    "restore": lambda run: run.until_phase(Phase.RESTORE),
    "save": lambda run: run.until_phase(Phase.SAVE),
    "half written": lambda run: run.until_writing(),
    "committed": lambda run: run.until_committed(),
}


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Return a folder for plain runs; at the end nothing of them may remain."""
    made = Shell(tmp_path_factory.mktemp("kill"), tmp_path_factory.getbasetemp() / "cache", CHANGES)
    yield made
    made.close()
    left = made.remains()
    made.remove()
    assert left == []


@pytest.fixture(scope="module")
def undisturbed(shell: Shell) -> dict[str, Any]:
    """Return the summary of the run that nothing disturbed."""
    return shell.finish("undisturbed")


def test_everything_killed_and_run_again(shell: Shell, undisturbed: dict[str, Any]) -> None:
    """SIGKILL of the command and all of its processes, at each moment in turn, changes nothing of the end."""
    for moment in MOMENTS.values():
        run = shell.begin("killed")
        moment(run)
        run.kill()
    summary = shell.finish("killed")

    assert summary["digest"] == undisturbed["digest"]
    assert summary["initialDigest"] == undisturbed["initialDigest"]
    assert summary["finalLoss"] == undisturbed["finalLoss"]
    assert summary["restarts"] == {}


def test_trainer_killed(shell: Shell, undisturbed: dict[str, Any]) -> None:
    """SIGKILL of the trainer at each moment in turn: the same command brings the run to the same end by itself."""
    run = shell.begin("trainer")
    for incarnation, moment in enumerate(MOMENTS.values()):
        run.until(lambda incarnation=incarnation: _incarnation(run) == incarnation)  # type: ignore[misc]
        moment(run)
        word = run.progress()
        assert word is not None
        os.kill(word.pid, signal.SIGKILL)
    summary = run.finish()

    assert summary["digest"] == undisturbed["digest"]
    assert summary["initialDigest"] == undisturbed["initialDigest"]
    assert summary["finalLoss"] == undisturbed["finalLoss"]
    assert summary["restarts"] == {"failure": len(MOMENTS)}
    assert [event["exit"] for event in run.events("ended")] == ["signal SIGKILL"] * len(MOMENTS)


def test_sigterm_loses_no_step(shell: Shell, undisturbed: dict[str, Any]) -> None:
    """A stop saves the step it reaches; the next start goes on from exactly there, repeating none."""
    run = shell.begin("stop")
    run.until_phase(Phase.STEP, step=10)
    assert run.send(signal.SIGTERM) == ExitCode.SAVED
    summary = shell.finish("stop")

    assert [record["step"] for record in run.records()] == list(range(1, 31))
    assert summary["digest"] == undisturbed["digest"]


def test_sigterm_before_the_first_step_ends_at_once(shell: Shell, undisturbed: dict[str, Any]) -> None:
    """While the programs are compiled there is nothing to save: the run ends as stopped, and the next one is whole."""
    run = shell.begin("early")
    run.until_phase(Phase.COMPILE)
    assert run.send(signal.SIGTERM) == ExitCode.SAVED
    assert (run.summary["status"], run.summary["steps"]) == ("stopped", 0)
    assert shell.finish("early")["digest"] == undisturbed["digest"]


def test_killed_while_evaluating(shell: Shell) -> None:
    """Evaluation touches no state: killed inside it, the run ends the same."""
    undisturbed = shell.finish("evaluated", *EVALUATED)
    run = shell.begin("evaluating", *EVALUATED)
    os.kill(run.until_phase(Phase.EVALUATE, step=4).pid, signal.SIGKILL)
    summary = run.finish()

    assert summary["digest"] == undisturbed["digest"]
    assert summary["restarts"] == {"failure": 1}
    evaluated = {event["step"]: event["heldOutLoss"] for event in run.records("evaluated")}
    assert sorted(evaluated) == list(range(2, 31, 2))
    assert evaluated[30] < evaluated[2]


def test_a_damaged_checkpoint_is_passed_over_and_written_again(shell: Shell, undisturbed: dict[str, Any]) -> None:
    """With a byte of the newest checkpoint changed the run goes on from the one before, to the same end."""
    run = shell.begin("damaged")
    run.until_phase(Phase.STEP, step=14)
    run.kill()
    newest = max(marker.parent for marker in run.directory.glob("checkpoints/step-*/COMMITTED"))
    victim = max((path for path in newest.glob("arrays/**/*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)

    assert shell.finish("damaged")["digest"] == undisturbed["digest"]
    restored = run.records("restored")[0]["step"]
    assert restored < int(newest.name.removeprefix("step-"))
    assert victim.read_bytes() != bytes(content)


def _incarnation(run: Run) -> int | None:
    word = run.progress()
    return word.incarnation if word else None
