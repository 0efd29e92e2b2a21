"""The devices that JAX finds, and whether they are those that the job asks for.

Called at every start, before anything compiles: on fewer devices, or on the processor where a driver did not answer, a
job would train on something else without a word. `python -m shardwise.train.devices` prints what there is on this
machine, for the launcher, which imports no JAX (`launcher/machine.py`).
"""

import json
import sys
from collections import Counter
from dataclasses import dataclass

import jax

from shardwise.job.accelerators import offered
from shardwise.job.devices import devices_words, hardware_words
from shardwise.job.errors import DeviceError
from shardwise.job.spec import TrainingJob
from shardwise.job.topology import num_devices

_WHAT_TO_DO = (
    "nothing was compiled. Look whether the driver is there and sees every device, or ask for what there is: "
    "hardware.accelerator and hardware.topology"
)


@dataclass(frozen=True, kw_only=True)
class Visible:
    """What JAX finds; its devices are all of one platform."""

    platform: str
    devices: list[jax.Device]

    @property
    def words(self) -> str:
        """How many of which kind: `8 GPU devices (NVIDIA H100 80GB HBM3)`."""
        kinds = Counter(device.device_kind for device in self.devices)
        return " and ".join(f"{devices_words(number, self.platform)} ({kind})" for kind, number in kinds.items())


def devices_of(job: TrainingJob) -> list[jax.Device]:
    """All devices of the run, those of the other hosts included.

    Raises:
        DeviceError: they are not as many as the job's hardware has, or of another kind.

    """
    hardware = job.spec.hardware
    asked = hardware_words(hardware)
    try:
        found = _visible()
    except RuntimeError as error:  # JAX's own, where the platform that it is told to take cannot be had
        raise DeviceError(f"the job asks for {asked}, and JAX finds none: {error}; {_WHAT_TO_DO}") from error
    if (found.platform, len(found.devices)) != (offered()[hardware.accelerator].spec.platform, num_devices(hardware)):
        raise DeviceError(f"the job asks for {asked}, and JAX finds {found.words}; {_WHAT_TO_DO}")
    return found.devices


def _visible() -> Visible:
    """The one place where JAX is asked."""
    devices = jax.devices()
    return Visible(platform=devices[0].platform, devices=devices)


def main() -> None:
    """Print the platform, the number and the kinds of this machine's devices, as JSON."""
    found = _visible()
    said = {"platform": found.platform, "number": len(found.devices), "words": found.words}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
