"""The devices that JAX finds, and whether they are those that the job asks for.

Called at every start, before anything compiles: on fewer devices, or on the processor where a driver did not answer, a
job would train on something else without a word. `python -m shardwise.train.devices` prints what there is on this
machine, for `shardwise run`, which imports no JAX.
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence

import jax

from shardwise.job.accelerators import offered
from shardwise.job.errors import DeviceError
from shardwise.job.spec import TrainingJob
from shardwise.job.topology import num_devices


def devices_of(job: TrainingJob) -> list[jax.Device]:
    """All devices of the run, those of the other hosts included.

    Raises:
        DeviceError: they are not as many as the job's hardware has, or of another kind.

    """
    found, hardware = _visible(), job.spec.hardware
    platform, number = offered()[hardware.accelerator].spec.platform, num_devices(hardware)
    if len(found) != number or found[0].platform != platform:
        slices = f", {hardware.slices} slices" if hardware.slices > 1 else ""
        raise DeviceError(
            f"the job asks for {number} {platform.upper()} devices ({hardware.accelerator} {hardware.topology}{slices}), "
            f"and JAX finds {in_words(found)}; nothing was compiled. Look whether the driver is there and sees every "
            "device, or ask for what there is: hardware.accelerator and hardware.topology"
        )
    return found


def in_words(devices: Sequence[jax.Device]) -> str:
    """How many of which kind: `8 GPU devices (NVIDIA H100 80GB HBM3)`."""
    kinds = Counter((device.platform, device.device_kind) for device in devices)
    return " and ".join(f"{number} {platform.upper()} devices ({kind})" for (platform, kind), number in kinds.items())


def _visible() -> list[jax.Device]:
    """The one place where JAX is asked."""
    return jax.devices()


def main() -> None:
    """Print the platform, the number and the kinds of this machine's devices, as JSON."""
    found = _visible()
    said = {"platform": found[0].platform, "number": len(found), "words": in_words(found)}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
