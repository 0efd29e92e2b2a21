"""The devices of a job in text, for messages that they are missing."""

from shardwise.job.accelerators import accelerator_of
from shardwise.job.spec import Hardware
from shardwise.job.spec.accelerator import AcceleratorClass
from shardwise.job.topology import num_devices, parse_topology, topologies
from shardwise.protocol.text import any_of


def devices_words(number: int, platform: str) -> str:
    """Return so many devices of a platform as text: `8 GPU devices`."""
    return f"{number} {platform.upper()} device{'' if number == 1 else 's'}"


def hardware_words(hardware: Hardware) -> str:
    """Return the devices of valid hardware as text: `16 GPU devices (gpu-h100 1x8, 2 slices)`."""
    platform = accelerator_of(hardware).spec.platform
    slices = f", {hardware.slices} slices" if hardware.slices > 1 else ""
    return f"{devices_words(num_devices(hardware), platform)} ({hardware.accelerator} {hardware.topology}{slices})"


def slices_words(hardware: Hardware) -> str:
    """Return what a job asks for as text: `2 slices of gpu-h100 1x8`."""
    several = f"{hardware.slices} slices of " if hardware.slices > 1 else ""
    return f"{several}{hardware.accelerator} {hardware.topology}"


def one_host_words(accelerator: AcceleratorClass) -> str:
    """Return the topologies of `accelerator` that are one host, or "" if it has none."""
    hosts = accelerator.spec.hosts
    if hosts is not None:
        fewest, most = (f"1x{number}" for number in (hosts.min_devices, hosts.max_devices))
        return fewest if fewest == most else f"{fewest} to {most}"
    parsed = ((grid, parse_topology(accelerator, grid)) for grid in topologies(accelerator))
    return any_of(grid for grid, topology in parsed if topology and topology.hosts == 1)
