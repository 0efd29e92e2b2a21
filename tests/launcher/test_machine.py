"""shardwise.launcher.machine: what there is on this machine."""

import sys
from pathlib import Path

import pytest

from shardwise.job.load import load
from shardwise.launcher import machine
from shardwise.protocol.errors import DeviceError

QUICKSTART = Path(__file__).parents[1] / "job" / "golden" / "quickstart.yaml"
GPUS = "hardware={accelerator: gpu, topology: 1x8}"


def test_jax_is_asked_in_another_process() -> None:
    """It takes what is there, whatever the job asks for: here the eight devices that these tests simulate."""
    found = machine.look(load(QUICKSTART, [GPUS]))
    assert (found.platform, found.number, found.message) == ("cpu", 8, "8 CPU devices (cpu)")


@pytest.mark.parametrize(
    ("says", "seconds", "words"),
    [
        ("raise SystemExit('no driver')", 60.0, "JAX finds no devices on this machine:\nno driver"),
        ("import time; time.sleep(60)", 0.1, "did not say within 0 s"),
    ],
)
def test_no_answer(says: str, seconds: float, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that fails, or waits for ever, ends in words for a person. Another program stands in for JAX."""
    monkeypatch.setattr(machine, "_ASK", (sys.executable, "-c", says))
    monkeypatch.setattr(machine, "_ANSWER_SECONDS", seconds)
    with pytest.raises(DeviceError, match=words):
        machine.look(load(QUICKSTART, [GPUS]))


def test_simulated_devices_are_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job for cpu-sim asks nobody, on any number of hosts."""
    monkeypatch.setattr(machine, "_ASK", ("false",))
    machine.refuse_elsewhere(load(QUICKSTART, ["hardware.topology=4x2"]))
