"""The example of torch, with the torch of .venv-hf: `make test-hf` runs this, since `make test` has no torch."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.running import Run
from tests.hosts.programs import EXAMPLES, ProgramShell

from shardwise.protocol.contract import log_path

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


def test_torch(shell: ProgramShell) -> None:
    """It meets over gloo by what it is told, learns, and ends with the same bits after a kill of a process."""
    command = f"program.command=[{PYTHON}, {EXAMPLES / 'torch_ddp.py'}, '{STEPS}']"
    calm = shell.begin("calm", command)
    calm.finish()
    *progress, last = lines(calm, 0)
    losses = [float(line.split()[-1]) for line in progress if line.startswith("step ")]
    assert losses[-1] < losses[0] / 4
    assert last.startswith("parameters ")

    run = shell.begin("killed", command)
    run.until(lambda: len(lines(run, 0)) > 2)
    os.kill(run.status()["hosts"][1]["trainerPid"], signal.SIGKILL)
    assert run.finish()["restarts"] == {"failure": 1}
    assert [lines(run, 1, host)[-1] for host in (0, 1)] == [last, last]
    assert lines(run, 1)[0] != lines(run, 0)[0]
