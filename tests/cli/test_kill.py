"""Killed at any moment and run again with the same command, a run ends with the digest of one that nothing disturbed.

Every run is a process of its own, killed with SIGKILL (or stopped with SIGTERM) when files on disk say that it is where
the test wants it. That a moment is over by the time the signal lands is possible, and as good a moment as any.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import COMMAND, QUICKSTART

from shardwise.job.contract import CACHE_VARIABLE, LOGS, ExitCode, Phase, progress_name, read_progress

LIMIT_SECONDS = 300.0  # before the test gives up; nothing is measured with it
CHANGES = (
    "model={preset: tiny, layers: 2, heads: 2, embed: 64, mlp: 128, seqLen: 32}",
    "data.train.0.paths=[text.txt]",
    "data.heldOut=0",
    "optimizer.learningRate=1e-2",
    "steps=30",
    "checkpoint={everySteps: 3, keep: {last: 12}}",
)
EVALUATED = ("data.train.0.paths=[documents.jsonl]", "data.heldOut=0.3", "evaluation={everySteps: 2, batches: 4}")


def phase(directory: Path) -> tuple[Phase | None, int]:
    """Return where the run in the directory is, and the steps it has completed."""
    progress = read_progress(directory / LOGS / progress_name(0))
    return (progress.phase, progress.step) if progress else (None, 0)


def in_phase(wanted: Phase, step: int = 0) -> Callable[[Path], bool]:
    """Return the condition of being in a phase with at least so many steps completed."""
    return lambda directory: phase(directory)[0] == wanted and phase(directory)[1] >= step


def saving(directory: Path) -> bool:
    """Tell whether a checkpoint after the first is half written: its files are there and its marker is not."""
    return any(not (step / "COMMITTED").exists() and any(step.glob("arrays/*")) for step in _after_the_first(directory))


def saved(directory: Path) -> bool:
    """Tell whether a checkpoint after the first is committed."""
    return any((step / "COMMITTED").exists() for step in _after_the_first(directory))


def _after_the_first(directory: Path) -> list[Path]:
    return sorted((directory / "checkpoints").glob("step-*"))[1:]


class Shell:
    """A folder with a job, and `shardwise run` in it."""

    def __init__(self, folder: Path, cache: Path, changes: tuple[str, ...]) -> None:
        self.folder = folder
        self._environment = os.environ | {CACHE_VARIABLE: str(cache)}
        self._command = [*COMMAND, "run", "job.yaml", *(f"--set=training.{change}" for change in (*CHANGES, *changes))]
        (folder / "job.yaml").write_bytes(QUICKSTART.read_bytes())
        text = "".join(f"{n} times {n + 1} is {n * (n + 1)}.\n" for n in range(2000))
        (folder / "text.txt").write_text(text)
        lines = (json.dumps({"text": line * 8}) for line in text.splitlines())
        (folder / "documents.jsonl").write_text("\n".join(lines))

    def begin(self, directory: str) -> subprocess.Popen[bytes]:
        """Start the run."""
        command = [*self._command, "--dir", directory]
        return subprocess.Popen(command, cwd=self.folder, env=self._environment, stdout=subprocess.DEVNULL)

    def finish(self, directory: str) -> dict[str, Any]:
        """Run to the end and return the summary."""
        assert self.begin(directory).wait(LIMIT_SECONDS) == ExitCode.OK
        summary: dict[str, Any] = json.loads((self.folder / directory / "summary.json").read_text())
        return summary

    def interrupt(self, directory: str, when: Callable[[Path], bool], number: signal.Signals) -> int:
        """Start the run, wait for the condition (or the run's end), send the signal, and return the exit code."""
        running = self.begin(directory)
        end = time.monotonic() + LIMIT_SECONDS
        while not when(self.folder / directory) and running.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.001)  # a poll, not a wait: the condition decides
        running.send_signal(number)
        return running.wait(LIMIT_SECONDS)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Return a folder for plain runs."""
    return Shell(tmp_path_factory.mktemp("kill"), tmp_path_factory.getbasetemp() / "cache", ())


@pytest.fixture(scope="module")
def undisturbed(shell: Shell) -> dict[str, Any]:
    """Return the summary of the run that nothing disturbed."""
    return shell.finish("undisturbed")


MOMENTS = {
    "compile": in_phase(Phase.COMPILE),
    "first-step": in_phase(Phase.STEP),
    "step": in_phase(Phase.STEP, step=8),
    "save": saving,
    "committed": saved,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_run_again(shell: Shell, undisturbed: dict[str, Any], moment: str) -> None:
    """SIGKILL while compiling, in a step, before a save's commit and after it changes nothing of the end."""
    shell.interrupt(moment, MOMENTS[moment], signal.SIGKILL)
    summary = shell.finish(moment)

    assert summary["digest"] == undisturbed["digest"]
    assert summary["initialDigest"] == undisturbed["initialDigest"]
    assert summary["finalLoss"] == undisturbed["finalLoss"]


def test_killed_again_and_again(shell: Shell, undisturbed: dict[str, Any]) -> None:
    """Killed in a step, then while restoring, then stopped with SIGTERM, the run still ends the same."""
    shell.interrupt("again", in_phase(Phase.STEP, step=7), signal.SIGKILL)
    shell.interrupt("again", in_phase(Phase.RESTORE), signal.SIGKILL)
    code = shell.interrupt("again", in_phase(Phase.STEP, step=11), signal.SIGTERM)

    assert code == ExitCode.SAVED
    assert shell.finish("again")["digest"] == undisturbed["digest"]


def test_sigterm_loses_no_step(shell: Shell, undisturbed: dict[str, Any]) -> None:
    """A stop saves the step it reaches; the next start goes on from exactly there, repeating none."""
    assert shell.interrupt("stop", in_phase(Phase.STEP, step=10), signal.SIGTERM) == ExitCode.SAVED
    summary = shell.finish("stop")
    records = [json.loads(line) for line in (shell.folder / "stop" / "metrics.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in records if "event" not in record]

    assert steps == list(range(1, 31))
    assert summary["digest"] == undisturbed["digest"]


def test_sigterm_before_the_first_step_ends_at_once(shell: Shell, undisturbed: dict[str, Any]) -> None:
    """While the programs are compiled there is nothing to save: the run ends as stopped, and the next one is whole."""
    assert shell.interrupt("early", in_phase(Phase.COMPILE), signal.SIGTERM) == ExitCode.SAVED
    assert json.loads((shell.folder / "early" / "summary.json").read_text())["steps"] == 0
    assert shell.finish("early")["digest"] == undisturbed["digest"]


def test_killed_while_evaluating(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Evaluation touches no state: killed inside it and run again, the run ends the same."""
    shell = Shell(tmp_path_factory.mktemp("evaluate"), tmp_path_factory.getbasetemp() / "cache", EVALUATED)
    undisturbed = shell.finish("undisturbed")
    shell.interrupt("killed", in_phase(Phase.EVALUATE, step=4), signal.SIGKILL)
    summary = shell.finish("killed")

    assert summary["digest"] == undisturbed["digest"]
    events = [json.loads(line) for line in (shell.folder / "killed" / "metrics.jsonl").read_text().splitlines()]
    evaluated = {event["step"]: event["heldOutLoss"] for event in events if event.get("event") == "evaluated"}
    assert sorted(evaluated) == list(range(2, 31, 2))
    assert evaluated[30] < evaluated[2]


def test_a_damaged_checkpoint_is_passed_over_and_written_again(shell: Shell, undisturbed: dict[str, Any]) -> None:
    """With a byte of the newest checkpoint changed the run goes on from the one before, to the same end."""
    shell.interrupt("damaged", in_phase(Phase.STEP, step=14), signal.SIGKILL)
    newest = max(marker.parent for marker in (shell.folder / "damaged" / "checkpoints").glob("step-*/COMMITTED"))
    victim = max((path for path in newest.glob("arrays/**/*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)

    assert shell.finish("damaged")["digest"] == undisturbed["digest"]
    events = [json.loads(line) for line in (shell.folder / "damaged" / "metrics.jsonl").read_text().splitlines()]
    restored = next(event["step"] for event in events if event.get("event") == "restored")
    assert restored < int(newest.name.removeprefix("step-"))
    assert victim.read_bytes() != bytes(content)
