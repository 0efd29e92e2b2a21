"""shardwise.plan.targets: what a class must say before a plan can compile for it."""

import sys
from pathlib import Path

import pytest
from tests.job.wrong_files import QUICKSTART

from shardwise.job.accelerators import BUILT_IN, loads_class, offering
from shardwise.job.load import load
from shardwise.plan import targets
from shardwise.protocol.errors import CompilerError

OWN = """
apiVersion: shardwise.dev/v1alpha1
kind: AcceleratorClass
metadata: {name: own}
spec:
  platform: PLATFORM
  description: devices of our own
  kernels: [plain]
  MACHINES
"""
CHIPS = "machines: [{name: m2, chips: 2, topologies: [1x2]}]"
HOSTS = "hosts: {max: 2, maxDevices: 8}"


@pytest.mark.parametrize(
    ("platform", "spec", "said"),
    [
        ("tpu", CHIPS, "the class own does not say what to compile for: it has no compiler.target"),
        ("tpu", f"{CHIPS}\n  compiler: {{target: v6e}}", "a plan knows hosts of 1, 4, 8 chips, and own has 2"),
        ("gpu", HOSTS, "the class own does not say what to compile for: it has no compiler.target"),
        ("gpu", f"{HOSTS}\n  compiler: {{target: b300}}", "given b300, expected a100, b200, gb200, h100, h200, l4"),
    ],
)
def test_a_class_that_cannot_be_compiled_for_is_told(
    platform: str, spec: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A platform team's class may say nothing of the compiler: jobs run on it, and a plan says what is missing."""
    monkeypatch.setattr(targets, "compiles_for", lambda _: True)
    with offering([loads_class(OWN.replace("PLATFORM", platform).replace("MACHINES", spec))]):
        job = load(QUICKSTART, ["hardware={accelerator: own, topology: 1x2}", "training.mesh.tensor=1"])
        with pytest.raises(CompilerError, match=said):
            targets.devices_for(job)


@pytest.mark.parametrize("name", [name for name in BUILT_IN if BUILT_IN[name].spec.platform == "gpu"])
def test_every_gpu_is_described(name: str) -> None:
    """The target of each built-in class of GPUs is a file that XLA takes for the machine."""
    compiler = BUILT_IN[name].spec.compiler

    assert compiler
    assert (targets._GPUS / f"{compiler.target}.txtpb").exists()


def test_what_brings_a_compiler_in_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The target of make that there is, beside the extra of pip; where there is no checkout, the extra alone."""
    monkeypatch.setattr(sys, "prefix", str(Path(__file__).parents[2] / ".venv"))
    assert "make setup-plan" in targets.what_brings("tpu")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert targets.what_brings("tpu") == 'pip install "shardwise[plan-tpu]" brings it'
