"""What a plan says that the process of a host holds is what trainers on simulated devices come to hold."""

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from tests.cli.conftest import COMMAND, outside
from tests.long import all_but

from shardwise.protocol.contract import CACHE_VARIABLE

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


@pytest.mark.parametrize("most", all_but(["activations", "state"], _JOBS))
def test_the_predicted_resident_memory_is_the_measured(most: str, tmp_path: Path) -> None:
    """Within a tenth of the most that a trainer holds at a first start, which compiles, and while it saves."""
    job = ["examples/quickstart.yaml", *_set("training.steps=4", "training.checkpoint.everySteps=2", *_JOBS[most])]
    # Compiled as a plan is: what XLA makes quickly holds less.
    environment = outside() | {
        CACHE_VARIABLE: str(tmp_path / "cache"),
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "executables"),
    }
    planned = subprocess.run(
        [*COMMAND, "plan", *job, "--json"], cwd=_ROOT, env=environment, capture_output=True, check=True
    )

    with (tmp_path / "said").open("wb") as said:
        run = subprocess.Popen(
            [*COMMAND, "run", *job, "--dir", tmp_path / "run"], cwd=_ROOT, env=environment, stdout=said, stderr=said
        )
        measured = _most_held(run)

    assert run.returncode == 0, (tmp_path / "said").read_text()
    assert json.loads(planned.stdout)["residentBytes"] == pytest.approx(measured, rel=0.1)


def _set(*changes: str) -> list[str]:
    return [argument for change in changes for argument in ("--set", change)]


def _most_held(run: subprocess.Popen[bytes]) -> int:
    """The bytes that a trainer has held at most: no other process of a run holds as many."""
    most, end = 0, time.monotonic() + _LIMIT_SECONDS
    while run.poll() is None:
        if time.monotonic() > end:
            run.terminate()
            run.wait()
        for child in psutil.Process(run.pid).children(recursive=True):
            try:
                status = Path(f"/proc/{child.pid}/status").read_text(encoding="ascii")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended in between
            peak = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
            most = max([most, *(int(kib) << 10 for kib in peak)])
        time.sleep(0.02)  # a poll, not a wait: the condition decides
    return most
