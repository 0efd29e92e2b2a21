"""shardwise.train.devices: the job's devices or none."""

import json
from pathlib import Path

import jax
import pytest

from shardwise.job.load import load
from shardwise.job.spec import TrainingJob
from shardwise.protocol.errors import DeviceError
from shardwise.train import devices
from shardwise.train.devices import devices_of

QUICKSTART = Path(__file__).parents[1] / "job" / "golden" / "quickstart.yaml"


def job(hardware: str) -> TrainingJob:
    """Return the quickstart job on this hardware."""
    return load(QUICKSTART, [f"hardware={hardware}"])


def test_the_devices_of_the_job() -> None:
    """Where JAX finds what the job asks for, the run has all of it."""
    assert devices_of(job("{accelerator: cpu-sim, topology: 1x8}")) == jax.devices()


@pytest.mark.parametrize(
    ("hardware", "asked"),
    [
        ("{accelerator: cpu-sim, topology: 1x4}", "4 CPU devices (cpu-sim 1x4)"),
        ("{accelerator: gpu-h100, topology: 1x8}", "8 GPU devices (gpu-h100 1x8)"),
        ("{accelerator: tpu-v6e, topology: 4x4, slices: 2}", "32 TPU devices (tpu-v6e 4x4, 2 slices)"),
    ],
)
def test_other_devices_are_refused(hardware: str, asked: str) -> None:
    """Another number, or another platform, is named beside what was asked for."""
    with pytest.raises(DeviceError) as refused:
        devices_of(job(hardware))
    assert f"the job asks for {asked}, and JAX finds 8 CPU devices (cpu)" in str(refused.value)


def test_a_platform_that_jax_cannot_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """What JAX says of a driver that does not answer is part of the refusal. JAX is faked: it has no such driver."""

    def fails() -> None:
        raise RuntimeError("Unable to initialize backend 'tpu'")

    monkeypatch.setattr(devices, "_visible", fails)
    with pytest.raises(DeviceError, match=r"JAX finds none: Unable to initialize backend 'tpu'"):
        devices_of(job("{accelerator: tpu-v6e, topology: 2x4}"))


def test_what_there_is_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The launcher, which imports no JAX, reads the platform, the number and words for people."""
    devices.main()
    assert json.loads(capsys.readouterr().out) == {"platform": "cpu", "number": 8, "words": "8 CPU devices (cpu)"}
