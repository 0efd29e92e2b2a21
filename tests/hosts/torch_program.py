"""The example of torch, with the torch of .venv-hf: `make test-hf` runs this, since `make test` has no torch."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.running import Run
from tests.hosts.conftest import agent_of
from tests.hosts.programs import EXAMPLES, ProgramShell

from shardwise.protocol.contract import ExitCode, log_path

PYTHON = Path(__file__).parents[2] / ".venv-hf" / "bin" / "python"
STEPS = 2000


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[ProgramShell]:
    """Return a folder with the job; after the test nothing of its runs may remain."""
    made = ProgramShell(tmp_path, tmp_path / "cache", topology="2x1")
    yield made
    made.close()
    assert [
        path for path in made.remains() if "torchinductor" not in path
    ] == []  # a folder that torch makes for itself
    made.remove()


def lines(run: Run, attempt: int, host: int = 0) -> list[str]:
    """What a process has printed."""
    path = log_path(run.directory, attempt, host)
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def command() -> str:
    """Return the change of the job that makes the example its program."""
    return f"program.command=[{PYTHON}, {EXAMPLES / 'torch_ddp.py'}, '{STEPS}']"


def test_killed_and_hung(shell: ProgramShell, command: str) -> None:
    """It meets over gloo by what it is told, learns, and ends with the same bits after kill -9, SIGSTOP, a lost agent.

    Each attempt goes on from the program's own file.
    """
    calm = shell.begin("calm", command)
    calm.finish()
    *progress, last = lines(calm, 0)
    losses = [float(line.split()[-1]) for line in progress if line.startswith("step ")]
    assert losses[-1] < losses[0] / 4
    assert last.startswith("parameters ")

    run = shell.begin("disturbed", command, "recovery.hangAfter=8s")
    for attempt, number in enumerate((signal.SIGKILL, signal.SIGSTOP)):
        run.until(under_way(run, attempt))
        os.kill(run.status()["hosts"][1]["trainerPid"], number)
    run.until(under_way(run, 2))
    os.kill(agent_of(run.status()["hosts"][1]["trainerPid"]), signal.SIGKILL)
    assert run.finish()["restarts"] == {"failure": 1, "hang": 1, "hostLost": 1}
    assert [lines(run, 3, host)[-1] for host in (0, 1)] == [last, last]
    first = [step_of(lines(run, attempt)[0]) for attempt in range(4)]
    assert first == sorted(set(first)), "an attempt has begun before the last one's file"


def test_a_stop_loses_nothing(shell: ProgramShell, command: str) -> None:
    """SIGTERM: all processes save after the same step; the same command goes on from there, to the same bits."""
    run = shell.begin("stopped", command)
    run.until(under_way(run, 0))
    assert run.send(signal.SIGTERM) == ExitCode.SAVED
    stopped = step_of(lines(run, 0)[-1])
    assert stopped == step_of(lines(run, 0, host=1)[-1]) < STEPS
    again = shell.begin("stopped", command)
    again.finish()
    assert step_of(lines(again, 1)[0]) == (stopped // 50 + 1) * 50

    calm = shell.begin("calm", command)
    calm.finish()
    assert lines(again, 1)[-1] == lines(calm, 0)[-1]


def under_way(run: Run, attempt: int) -> Callable[[], bool]:
    """Return whether an attempt has printed so much that its file is there."""
    return lambda: len(lines(run, attempt)) > 2


def step_of(line: str) -> int:
    """The step of a line of progress."""
    return int(line.split()[1])
