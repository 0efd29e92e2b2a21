"""`shardwise plan --summary`: the verdict in a file, as the pod of a preflight leaves it."""

import subprocess
from pathlib import Path

import pytest
from tests.cli.conftest import COMMAND, MODEL, QUICKSTART, person

from shardwise.job.accelerators import CLASS_VARIABLE
from shardwise.job.document import write_document
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.pods import Verdict

CLASS = {
    "apiVersion": "shardwise.dev/v1alpha1",
    "kind": "AcceleratorClass",
    "metadata": {"name": "cramped"},
    "spec": {
        "platform": "cpu",
        "description": "simulated devices of little memory",
        "kernels": ["plain", "blockwise"],
        "hosts": {"max": 4, "maxDevices": 8},
        "peakFlops": {"bfloat16": "100G", "float32": "100G"},
        "interconnect": {"axes": 1, "bandwidth": "1G"},
    },
}


@pytest.mark.parametrize("memory", ["1Gi", "2Mi", None])
def test_the_verdict_is_left_in_a_file(memory: str | None, tmp_path: Path) -> None:
    """Whether the job fits, its figures, and for one that does not the change with which it does."""
    accelerator = {**CLASS, "spec": {**CLASS["spec"], **({"deviceMemory": memory} if memory else {})}}  # type: ignore[dict-item]
    file, left = tmp_path / "class.yaml", tmp_path / "verdict"
    file.write_text(write_document(accelerator))
    left.touch()
    changes = ("hardware={accelerator: cramped, topology: 1x2}", "training.mesh={fsdp: true}", MODEL)
    words = [word for change in changes for word in ("--set", change)]
    environment = person(tmp_path) | {CLASS_VARIABLE: str(file)}
    command = [*COMMAND, "plan", str(QUICKSTART), *words, "--summary", str(left)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    verdict = Verdict.loads(left.read_text())

    assert verdict is not None, done.stderr
    assert done.returncode == (ExitCode.OUT_OF_MEMORY if verdict.fits is False else ExitCode.OK), done.stderr
    assert verdict.needed_bytes > 2**20
    judged = {"1Gi": (True, 2**30), "2Mi": (False, 2**21), None: (None, None)}
    assert (verdict.fits, verdict.limit_bytes) == judged[memory]
    assert (verdict.change or "").startswith("training.") == (memory == "2Mi")
    assert not verdict.stand_in
