"""How many devices a job has, and how its mesh divides them.

Used by the rules, and by the trainer to build its device mesh.  Says only what follows from the job file; looks at no
machine.
"""

from dataclasses import dataclass

from shardwise.job.accelerators import ACCELERATORS, Accelerator
from shardwise.job.spec import Hardware, TrainingJob


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The devices of one slice."""

    hosts: int
    devices_per_host: int

    @property
    def num_devices(self) -> int:
        """Devices of one slice."""
        return self.hosts * self.devices_per_host


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """Devices along each mesh axis, in the order of the mesh."""

    replica: int
    data: int
    context: int
    tensor: int
    pipeline: int


def parse_topology(accelerator: Accelerator, text: str) -> Topology | None:
    """Reads "HxD"; None where `text` is no topology of `accelerator` (`topology_words` says what is)."""
    sizes = [int(size) for size in text.split("x") if size.isdecimal()]
    if len(sizes) != 2 or text.count("x") != 1:
        return None
    hosts, devices_per_host = sizes
    if not (1 <= hosts <= accelerator.max_hosts and 1 <= devices_per_host <= accelerator.max_devices_per_host):
        return None
    return Topology(hosts=hosts, devices_per_host=devices_per_host)


def topology_words(accelerator: Accelerator) -> str:
    """The valid topologies of `accelerator` in words."""
    return (
        f"hosts x devices per host, such as 1x8, with at most {accelerator.max_hosts} hosts "
        f"and {accelerator.max_devices_per_host} devices per host"
    )


def topology_of(hardware: Hardware) -> Topology | None:
    """The topology of one slice; None where the accelerator or the topology is not known."""
    accelerator = ACCELERATORS.get(hardware.accelerator)
    return None if accelerator is None else parse_topology(accelerator, hardware.topology)


def num_devices(hardware: Hardware) -> int:
    """Devices over all slices, of hardware that the rules have passed."""
    topology = topology_of(hardware)
    assert topology is not None
    return topology.num_devices * hardware.slices


def mesh_shape(job: TrainingJob) -> MeshShape | None:
    """The mesh of a resolved job; None where its sizes do not divide the devices."""
    mesh, hardware = job.spec.training.mesh, job.spec.hardware
    if topology_of(hardware) is None:
        return None
    replica = mesh.replica or hardware.slices
    data, rest = divmod(num_devices(hardware), mesh.tensor * replica * mesh.context * mesh.pipeline)
    if rest or not data:
        return None
    return MeshShape(replica=replica, data=data, context=mesh.context, tensor=mesh.tensor, pipeline=mesh.pipeline)
