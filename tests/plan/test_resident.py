"""What a plan says that the process of a host holds is what trainers on simulated devices come to hold."""

import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.cli.conftest import COMMAND, person

_ROOT = Path(__file__).parents[2]
_LIMIT_SECONDS = 300.0  # before a test gives up; nothing is measured with it
_JOBS: Mapping[str, tuple[str, ...]] = {
    "programs": (),
    "hosts": ("hardware.topology=2x4",),
    "activations": (
        "hardware.topology=1x2",
        "training.mesh.tensor=1",
        "training.batch.sequences=32",
        "training.model={layers: 4, heads: 4, embed: 256, seqLen: 256, remat: none}",
    ),
    "state": (
        "hardware.topology=1x1",
        "training.mesh.tensor=1",
        "training.batch.sequences=2",
        "training.model={layers: 8, heads: 8, embed: 768, seqLen: 128}",
    ),
}
"""What most of the memory is of, and the changes of the quickstart."""


@pytest.mark.parametrize("changes", _JOBS.values(), ids=_JOBS)
def test_the_predicted_resident_memory_is_the_measured(changes: tuple[str, ...], tmp_path: Path) -> None:
    """Within a tenth of the most that a trainer holds at a first start, which compiles, and while it saves."""
    job = ["examples/quickstart.yaml", *_set("training.steps=4", "training.checkpoint.everySteps=2", *changes)]
    environment = person(tmp_path / "cache") | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "executables")}
    planned = subprocess.run(
        [*COMMAND, "plan", *job, "--json"], cwd=_ROOT, env=environment, capture_output=True, check=True
    )

    code, most = _most_held([*COMMAND, "run", *job, "--dir", str(tmp_path / "run")], environment, tmp_path / "said")

    assert code == 0, (tmp_path / "said").read_text()
    assert json.loads(planned.stdout)["residentBytes"] == pytest.approx(most, rel=0.1)


def _set(*changes: str) -> list[str]:
    return [argument for change in changes for argument in ("--set", change)]


def _most_held(command: Sequence[str], environment: Mapping[str, str], said: Path) -> tuple[int, int]:
    """The exit code of a run, and the bytes that a trainer has held at most: no other process of it holds as many.

    The kernel keeps the most of each process whose end was waited for, and of those that it has waited for itself.
    """
    with said.open("wb") as output:
        run = subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=output, stderr=output)
    late = threading.Timer(_LIMIT_SECONDS, run.terminate)
    late.start()
    _, status, usage = os.wait4(run.pid, 0)
    late.cancel()
    run.returncode = os.waitstatus_to_exitcode(status)
    return run.returncode, usage.ru_maxrss << 10
