"""The classes of machine that a job can ask for, as data.

A class of a further vendor is one more entry here; nothing else in the package knows a machine by its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One class of machine.

    A topology of it is written `hosts x devices per host`, up to `max_hosts` and `max_devices_per_host`; `kernels` are
    the attention kernels that it runs, besides auto.
    """

    name: str
    platform: Literal["cpu", "gpu", "tpu"]
    description: str
    max_hosts: int
    max_devices_per_host: int
    kernels: tuple[str, ...]


ACCELERATORS: Mapping[str, Accelerator] = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator(
            name="cpu-sim",
            platform="cpu",
            description="simulated devices on any CPU",
            max_hosts=64,
            max_devices_per_host=64,
            kernels=("plain", "blockwise"),
        ),
    )
}
