"""An AcceleratorClass: a type of machine as data. What a platform team offers, and what a job asks for by name.

The built-in ones are in `job/classes`; `job/accelerators.py` finds them. In a cluster each is an object of its own.
"""

from typing import Annotated, Literal

from pydantic import Field

from shardwise.job.quantity import Quantity
from shardwise.job.spec.base import (
    DNS_LABEL,
    DNS_LABEL_WORDS,
    AbsolutePath,
    Annotations,
    Grammar,
    Label,
    MarkKey,
    Unit,
    XlaFlag,
)
from shardwise.job.spec.pod import EnvVariable, Image, LabelValue, Quantities, Toleration
from shardwise.protocol.strict_model import StrictModel

GRID = r"^[1-9][0-9]{0,3}(x[1-9][0-9]{0,3}){0,2}$"

GridText = Annotated[
    str,
    Field(min_length=1, max_length=14, pattern=GRID),
    Grammar("up to three whole numbers joined by 'x', such as 4x4x4"),
]
_Devices = Annotated[int, Field(ge=1, le=64)]
_Word = Annotated[str, Field(min_length=1, max_length=1024)]
_NETWORK = Field(description="What a host sends to others over the data-centre network, in bytes a second.")


class ClassMetadata(StrictModel):
    """The name and the marks of a class."""

    name: Annotated[str, DNS_LABEL_WORDS] = Field(
        min_length=1, max_length=63, pattern=DNS_LABEL, description="What jobs call the class."
    )
    labels: dict[MarkKey, LabelValue] = Field(
        default_factory=dict, max_length=64, description="Marks, as Kubernetes has."
    )
    annotations: Annotations = Field(default_factory=dict, max_length=64, description="Notes, as Kubernetes has.")


class Machine(StrictModel):
    """A machine of a grid of chips: a slice has as many of them as its chips need."""

    name: LabelValue = Field(min_length=1, description="The machine type; {machine} in nodeSelector.")
    chips: Annotated[_Devices, Unit("chips")] = Field(description="Chips of one machine, which is one host.")
    topologies: tuple[GridText, ...] = Field(
        strict=False, min_length=1, max_length=512, description="The grids that are built of it."
    )
    network_bandwidth: Annotated[Quantity | None, _NETWORK] = None


class HostRange(StrictModel):
    """Equal hosts without a grid: a topology is written hosts x devices per host."""

    max: Annotated[int, Unit("hosts")] = Field(ge=1, le=16384, description="The most hosts of one slice.")
    min_devices: Annotated[_Devices, Unit("devices")] = Field(1, description="The fewest devices of a host.")
    max_devices: Annotated[_Devices, Unit("devices")] = Field(description="The most devices of a host.")
    network_bandwidth: Annotated[Quantity | None, _NETWORK] = None


class PeakFlops(StrictModel):
    """How fast one device multiplies matrices, in FLOP/s, by the formats of `precision`."""

    bfloat16: Quantity = Field(description="Of bfloat16 products, without sparsity.")
    float32: Quantity = Field(description="Of products in full float32.")
    float8: Quantity | None = Field(None, description="Of float8 products; left out, they are no faster.")
    int8: Quantity | None = Field(None, description="Of int8 products; left out, they are no faster.")

    def per_second(self, dtype: Literal["bfloat16", "float32", "float8", "int8"]) -> float:
        """Return the FLOP/s of products in this format, which must be there."""
        return float(getattr(self, dtype).value)


class Interconnect(StrictModel):
    """What joins the devices of one slice of TPUs, or of one host of GPUs."""

    axes: Annotated[int, Unit("axes")] = Field(
        ge=1, le=3, description="Axes of the torus that the devices form; 1 for a switch."
    )
    bandwidth: Quantity = Field(description="What a device sends over one link in one direction, in bytes a second.")
    ring_from: Annotated[int | None, Unit("chips")] = Field(
        None,
        ge=1,
        le=4096,
        description="Chips from which a side of the grid closes to a ring; in three dimensions if all sides do. "
        "Left out for a switch.",
    )


class CompilerFlag(StrictModel):
    """An option that every program for the class is compiled with."""

    flag: XlaFlag = Field(description="The option.")
    reason: str = Field(min_length=1, max_length=512, description="What it is for, and what shows it.")


class Compiler(StrictModel):
    """What XLA is told of the class."""

    target: Label = Field(
        description="libtpu's name of the TPU generation, such as v5p; for GPUs a file of shardwise/plan/gpus."
    )
    flags: tuple[CompilerFlag, ...] = Field(
        (), strict=False, max_length=32, description="Options of its programs; a job's xlaFlags win over them."
    )


class HostPath(StrictModel):
    """A folder of the machine that the container sees."""

    name: Label = Field(description="The volume's name; unique in the class.")
    path: AbsolutePath = Field(description="The folder on the machine.")
    mount_path: AbsolutePath = Field(description="The folder in the container.")
    read_only: bool = Field(True, description="Whether the container may not write to it.")


class Sidecar(StrictModel):
    """A container beside the trainer's that the network of a machine needs, such as GKE's receiver of TCPXO."""

    name: Label = Field(description="The container's name; no container of a job has it.")
    image: Image = Field(description="Its image.")
    command: tuple[_Word, ...] = Field((), strict=False, max_length=64, description="What it runs, or its image's.")
    started: tuple[_Word, ...] = Field(
        (), strict=False, max_length=64, description="A command that succeeds in it once the trainer may start."
    )
    capabilities: tuple[Annotated[str, Field(max_length=64, pattern=r"^[A-Z_]+$")], ...] = Field(
        (), strict=False, max_length=32, description="Linux capabilities that it gets, such as NET_ADMIN."
    )
    env: tuple[EnvVariable, ...] = Field((), strict=False, max_length=64, description="Its variables.")
    host_paths: tuple[HostPath, ...] = Field(
        (), strict=False, max_length=16, description="Folders of the machine that it sees."
    )


class Allowed(StrictModel):
    """Which jobs may use a class: one whose pods are privileged is worth root on its nodes."""

    namespaces: tuple[Label, ...] | None = Field(
        None,
        strict=False,
        max_length=256,
        description="The namespaces of jobs; left out, all; with an empty list, none.",
    )
    images: tuple[Image, ...] | None = Field(
        None,
        strict=False,
        max_length=64,
        description="Images that a job may name itself, each whole or as the beginning up to a '/', ':' or '@'; "
        "left out, all. With none in the list it is the class's image or the operator's.",
    )


class AcceleratorSpec(StrictModel):
    """What the machines are, and how pods come to run on them."""

    platform: Literal["cpu", "gpu", "tpu"] = Field(description="What JAX calls the devices.")
    description: str = Field(min_length=1, max_length=256, description="The class in one line.")
    kernels: tuple[Literal["plain", "blockwise", "splash", "cudnn"], ...] = Field(
        strict=False, min_length=1, max_length=4, description="The attention kernels that run on it."
    )
    machines: tuple[Machine, ...] = Field(
        (), strict=False, max_length=8, description="Machines by grid of chips; each grid in one of them."
    )
    hosts: HostRange | None = Field(None, description="Hosts without a grid; this or machines.")
    devices_per_chip: Annotated[int, Unit("devices")] = Field(
        1, ge=1, le=8, description="Devices that JAX sees of one chip."
    )
    device_memory: Quantity | None = Field(None, description="Memory of one device that programs can use, in bytes.")
    memory_bandwidth: Quantity | None = Field(
        None, description="What one device reads from its memory, in bytes a second."
    )
    peak_flops: PeakFlops | None = Field(None, description="How fast one device multiplies matrices.")
    interconnect: Interconnect | None = Field(
        None, description="What joins the devices of a slice, or of a host of GPUs."
    )
    compiler: Compiler | None = Field(None, description="What XLA is told of the class.")
    device_resource: MarkKey | None = Field(None, description="The resource by which a pod asks for its chips or GPUs.")
    resources: Quantities = Field(
        default_factory=dict, max_length=32, description="Further resources of each host's pod."
    )
    requests: Quantities = Field(
        default_factory=dict,
        max_length=32,
        description="What each host's pod asks for at least, such as cpu and memory; a job's come first.",
    )
    node_selector: dict[MarkKey, LabelValue] = Field(
        default_factory=dict,
        max_length=32,
        description="Labels of its nodes; {topology} and {machine} stand for the job's.",
    )
    tolerations: tuple[Toleration, ...] = Field((), strict=False, max_length=32, description="Taints of its nodes.")
    placement_label: MarkKey | None = Field(
        None, description="The node label whose value the hosts of a slice share and no other slice's have."
    )
    env: tuple[EnvVariable, ...] = Field(
        (), strict=False, max_length=64, description="Variables of the training processes."
    )
    pod_security: Literal["restricted", "baseline", "privileged"] = Field(
        "restricted", description="The PodSecurity level that the pods keep to."
    )
    host_paths: tuple[HostPath, ...] = Field(
        (), strict=False, max_length=16, description="Folders of the machine; privileged only."
    )
    sidecars: tuple[Sidecar, ...] = Field(
        (), strict=False, max_length=4, description="Containers that run as long as the trainer; privileged only."
    )
    annotations: Annotations = Field(
        default_factory=dict, max_length=32, description="Annotations of its pods, such as their networks; a job's win."
    )
    shared_memory: Quantity | None = Field(
        None, description="The most that /dev/shm holds, in bytes; left out, half of the memory."
    )
    image: Image | None = Field(None, description="The trainer's image, where it is not the operator's.")
    allowed: Allowed | None = Field(None, description="Which jobs may use the class; left out, all.")


class AcceleratorClass(StrictModel):
    """A type of machine."""

    api_version: Literal["shardwise.dev/v1alpha1"] = Field(description="The version of the format.")
    kind: Literal["AcceleratorClass"] = Field(description="The kind of object.")
    metadata: ClassMetadata = Field(description="The name and the marks of the class.")
    spec: AcceleratorSpec = Field(description="What the machines are.")

    @property
    def name(self) -> str:
        """What jobs call the class."""
        return self.metadata.name
