"""The AcceleratorCatalog: all classes in one object, because an admission policy can read one parameter by name.

The operator writes it whenever a class changes; `accelerator_policy.py` reads it.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field

from shardwise.job.accelerators import class_of
from shardwise.job.spec.accelerator import AcceleratorClass, GridText
from shardwise.job.spec.base import XlaFlag
from shardwise.job.topology import parse_topology, topologies
from shardwise.protocol.errors import JobError
from shardwise.protocol.message import MAX_INT32
from shardwise.protocol.strict_model import StrictModel
from shardwise_operator.runtime.kinds import ACCELERATOR_CATALOGS

CATALOG_NAME = "shardwise"


class CatalogGrid(StrictModel):
    """A grid of chips that one slice can be."""

    topology: Annotated[GridText, Field(description="The grid.")]
    devices: Annotated[int, Field(ge=1, le=MAX_INT32, description="The devices that JAX sees of one slice.")]
    hosts: Annotated[int, Field(ge=1, le=16384, description="The hosts of one slice.")] = 1


class CatalogEntry(StrictModel):
    """What admission must know of one class: its kernels, its options, its grids or the range of its hosts."""

    name: Annotated[str, Field(min_length=1, max_length=63, description="The class.")]
    kernels: Annotated[
        tuple[Annotated[str, Field(max_length=32)], ...],
        Field(strict=False, max_length=8, description="The attention kernels that run on it."),
    ]
    topologies: Annotated[
        tuple[CatalogGrid, ...],
        Field(strict=False, max_length=4096, description="Its grids, smallest first; none where hosts are counted."),
    ] = ()
    flags: Annotated[
        tuple[XlaFlag, ...], Field(strict=False, max_length=32, description="Options that its programs get from it.")
    ] = ()
    max_hosts: Annotated[int, Field(ge=0, le=16384, description="The most hosts of a topology hosts x devices.")] = 0
    min_devices: Annotated[int, Field(ge=0, le=64, description="The fewest devices of a host.")] = 0
    max_devices: Annotated[int, Field(ge=0, le=64, description="The most devices of a host.")] = 0


class CatalogSpec(StrictModel):
    """All classes of the cluster."""

    classes: Annotated[
        tuple[CatalogEntry, ...], Field(strict=False, max_length=256, description="One entry for each class, by name.")
    ] = ()


def catalog_of(manifests: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the catalogue of a cluster's classes, as an object to write; classes that are wrong are left out."""
    entries = sorted((_entry(each) for each in _readable(manifests)), key=lambda entry: str(entry["name"]))
    return ACCELERATOR_CATALOGS.manifest({"name": CATALOG_NAME}, spec={"classes": entries})


def _readable(manifests: Iterable[Mapping[str, Any]]) -> Iterable[AcceleratorClass]:
    for manifest in manifests:
        try:
            yield class_of(manifest)
        except JobError:  # what the API server cannot see, such as a grid in two machines: no job can ask for the class
            continue


def _entry(accelerator: AcceleratorClass) -> dict[str, Any]:
    hosts = accelerator.spec.hosts
    entry: dict[str, Any] = {"name": accelerator.name, "kernels": list(accelerator.spec.kernels)}
    if accelerator.spec.compiler and accelerator.spec.compiler.flags:
        entry["flags"] = [one.flag for one in accelerator.spec.compiler.flags]
    if hosts is not None:
        return entry | {"maxHosts": hosts.max, "minDevices": hosts.min_devices, "maxDevices": hosts.max_devices}
    return entry | {"topologies": [_grid(accelerator, grid) for grid in topologies(accelerator)]}


def _grid(accelerator: AcceleratorClass, grid: str) -> dict[str, Any]:
    topology = parse_topology(accelerator, grid)
    assert topology is not None, "the class offers the grid"
    return {"topology": grid, "devices": topology.num_devices, "hosts": topology.hosts}
