"""The devices that JAX finds, checked against those that the job asks for.

The check comes before anything compiles: on fewer devices, or on the CPU because a driver failed, a job would silently
train on something else. `python -m shardwise.train.devices` prints the devices of this machine for the launcher, which
imports no JAX (`launcher/machine.py`).
"""

import json
import sys
from collections import Counter
from dataclasses import dataclass

import jax

from shardwise.job.accelerators import accelerator_of
from shardwise.job.device_words import devices_words, hardware_words
from shardwise.job.spec import TrainingJob
from shardwise.job.topology import num_devices
from shardwise.protocol.errors import DeviceError

_WHAT_TO_DO = (
    "nothing was compiled. Look whether the driver is there and sees every device, or ask for what there is: "
    "hardware.accelerator and hardware.topology"
)


@dataclass(frozen=True, kw_only=True)
class Visible:
    """The devices that JAX finds, all of one platform."""

    platform: str
    devices: list[jax.Device]

    @property
    def summary(self) -> str:
        """The number and kind of the devices: `8 GPU devices (NVIDIA H100 80GB HBM3)`."""
        kinds = Counter(device.device_kind for device in self.devices)
        return " and ".join(f"{devices_words(number, self.platform)} ({kind})" for kind, number in kinds.items())


def devices_of(job: TrainingJob) -> list[jax.Device]:
    """Return all devices of the run, including those of the other hosts.

    Raises:
        DeviceError: their number or platform is not that of the job's hardware.

    """
    hardware = job.spec.hardware
    asked = hardware_words(hardware)
    try:
        found = _visible()
    except RuntimeError as error:  # JAX cannot initialize the platform that its environment asks for
        raise DeviceError(f"the job asks for {asked}, and JAX finds none: {error}; {_WHAT_TO_DO}") from error
    if (found.platform, len(found.devices)) != (accelerator_of(hardware).spec.platform, num_devices(hardware)):
        raise DeviceError(f"the job asks for {asked}, and JAX finds {found.summary}; {_WHAT_TO_DO}")
    return found.devices


def simulated() -> bool:
    """Return whether the devices are simulated ones, which share the processors of their machine."""
    return str(jax.devices()[0].platform) == "cpu"


def _visible() -> Visible:
    """Ask JAX for its devices; tests fake this function."""
    devices = jax.devices()
    return Visible(platform=devices[0].platform, devices=devices)


def main() -> None:
    """Print the platform, the number and the kinds of this machine's devices, as JSON."""
    found = _visible()
    message = {"platform": found.platform, "number": len(found.devices), "words": found.summary}
    sys.stdout.write(json.dumps(message) + "\n")


if __name__ == "__main__":
    main()
