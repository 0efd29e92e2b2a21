"""How many devices a job has, and how its mesh divides them, as far as the job file alone decides it."""

import math
from dataclasses import dataclass

from shardwise.job.accelerators import accelerator_of, offered
from shardwise.job.spec import Hardware, Mesh, TrainingJob
from shardwise.job.spec.accelerator import AcceleratorClass, HostRange
from shardwise.protocol.text import any_of

_MOST_LISTED = 12
_MOST_OF_A_GROUP = 16


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The devices of one slice; `machine` is the type of its hosts, or "" if the class leaves that open."""

    hosts: int
    devices_per_host: int
    machine: str = ""

    @property
    def num_devices(self) -> int:
        """Return the devices of one slice."""
        return self.hosts * self.devices_per_host


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """Devices along each mesh axis; `data` is all of its two axes, and experts are split over the inner one or not."""

    replica: int
    data: int
    data_inner: int
    expert: int
    context: int
    tensor: int
    pipeline: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the devices along replica, outer data, inner data, context, pipeline and tensor: as the mesh lies."""
        return self.replica, self.data // self.data_inner, self.data_inner, self.context, self.pipeline, self.tensor

    @property
    def words(self) -> str:
        """Return the mesh as text: replica 2 x data 64 (16 x 4) x tensor 1."""
        experts = ", experts over the last" if self.expert > 1 else ""
        steps = f" ({self.data // self.data_inner} x {self.data_inner}{experts})" if self.data_inner > 1 else ""
        context = f" x context {self.context}" if self.context > 1 else ""
        pipeline = f" x pipeline {self.pipeline}" if self.pipeline > 1 else ""
        return f"replica {self.replica} x data {self.data}{steps}{context}{pipeline} x tensor {self.tensor}"


def parse_topology(accelerator: AcceleratorClass, text: str) -> Topology | None:
    """Read "HxD" or a grid of chips; None if `accelerator` has no such topology (`topology_words` lists them)."""
    hosts = accelerator.spec.hosts
    return _parse_grid(accelerator, text) if hosts is None else _parse_hosts(hosts, text)


def topologies(accelerator: AcceleratorClass) -> list[str]:
    """Return the grids of `accelerator`, smallest first; none if its topologies are hosts x devices."""
    grids = [grid for machine in accelerator.spec.machines for grid in machine.topologies]
    return sorted(grids, key=lambda grid: (_chips(grid), grid.count("x"), grid))


def topology_words(accelerator: AcceleratorClass, given: str) -> str:
    """Return the valid topologies of `accelerator` as text; of many, those closest to `given` in chips."""
    hosts, grids = accelerator.spec.hosts, topologies(accelerator)
    if hosts is not None:
        return _host_words(hosts)
    if len(grids) <= _MOST_LISTED:
        return f"a grid of chips: {any_of(grids)}"
    near = sorted(grids, key=lambda grid: abs(math.log(_chips(grid) / _chips(given))))[:_MOST_LISTED]
    listed = [grid for grid in grids if grid in near]
    return f"one of the {len(grids)} grids of {accelerator.name}, such as {any_of(listed)}"


def node_labels(accelerator: AcceleratorClass, hardware: Hardware) -> dict[str, str]:
    """Return the labels of the nodes for `hardware`, which the rules have passed."""
    topology = parse_topology(accelerator, hardware.topology)
    assert topology is not None
    known = {"{topology}": hardware.topology, "{machine}": topology.machine}
    labels = dict(accelerator.spec.node_selector)
    for placeholder, value in known.items():
        labels = {key: text.replace(placeholder, value) for key, text in labels.items()}
    return labels


def host_resources(accelerator: AcceleratorClass, topology: Topology) -> dict[str, str]:
    """Return what one host's pod requests for its class: chips or GPUs, and the class's further resources."""
    spec = accelerator.spec
    devices = {spec.device_resource: str(topology.devices_per_host // spec.devices_per_chip)}
    own = {key: value for key, value in devices.items() if key is not None}
    return {**own, **{key: str(amount) for key, amount in spec.resources.items()}}


def topology_of(hardware: Hardware) -> Topology | None:
    """Return the topology of one slice, or None if the accelerator or the topology is not known."""
    accelerator = offered().get(hardware.accelerator)
    return None if accelerator is None else parse_topology(accelerator, hardware.topology)


def num_devices(hardware: Hardware) -> int:
    """Return the devices over all slices, of hardware that the rules have passed."""
    topology = topology_of(hardware)
    assert topology is not None
    return topology.num_devices * hardware.slices


def num_hosts(hardware: Hardware) -> int:
    """Return the hosts over all slices, of hardware that the rules have passed."""
    topology = topology_of(hardware)
    assert topology is not None
    return topology.hosts * hardware.slices


def mesh_shape(job: TrainingJob) -> MeshShape | None:
    """Return the mesh of a resolved job, or None if its sizes do not divide the devices."""
    hardware = job.spec.hardware
    if topology_of(hardware) is None:
        return None
    return divided(job.spec.training.mesh, num_devices(hardware), slices=hardware.slices)


def divided(mesh: Mesh, devices: int, *, slices: int = 1) -> MeshShape | None:
    """Return the mesh over so many devices, or None if its sizes do not divide them; data takes what is left."""
    replica = mesh.replica or slices
    data, rest = divmod(devices, mesh.tensor * replica * mesh.context * mesh.pipeline)
    if rest or not data:
        return None
    return MeshShape(
        replica=replica,
        data=data,
        data_inner=mesh.data_inner or mesh.expert,
        expert=mesh.expert,
        context=mesh.context,
        tensor=mesh.tensor,
        pipeline=mesh.pipeline,
    )


def divisors(number: int) -> list[int]:
    """Return the divisors of `number`, smallest first."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def multiples_near(number: int, step: int) -> list[int]:
    """Return the multiples of `step` on both sides of `number`."""
    below = number // step * step
    return [size for size in (below, below + step) if size]


def inner_ways(hardware: Hardware, data: int) -> int:
    """Return how many ways the inner of the two axes of `data` has by default.

    XLA's compiler for TPUs turns a gather over more than 32 chips into an all-reduce of everything; up to 16 are safe.
    It does the same to a scatter over all chips of several hosts, even if they are 8: two steps have no such group. The
    outer axis takes as many as it may, because what is left for the second step is then smallest. GPUs gather over any
    number in one step, in which a host's network sends each byte once.
    """
    topology = topology_of(hardware)
    assert topology is not None, "the rules have passed the topology"
    everything = data == num_devices(hardware) and topology.hosts > 1
    if accelerator_of(hardware).spec.platform != "tpu" or (data <= _MOST_OF_A_GROUP and not everything):
        return 1
    outers = [ways for ways in divisors(data) if data > ways >= data // ways]
    safe = [ways for ways in outers if ways <= _MOST_OF_A_GROUP]
    return data // (max(safe) if safe else min(outers, default=data))


def _chips(grid: str) -> int:
    return math.prod(int(side) for side in grid.split("x") if side.isdecimal())


def _parse_grid(accelerator: AcceleratorClass, text: str) -> Topology | None:
    for machine in accelerator.spec.machines:
        if text in machine.topologies:
            return Topology(
                hosts=_chips(text) // machine.chips,
                devices_per_host=machine.chips * accelerator.spec.devices_per_chip,
                machine=machine.name,
            )
    return None


def _parse_hosts(hosts: HostRange, text: str) -> Topology | None:
    sizes = [int(size) for size in text.split("x") if size.isdecimal()]
    if len(sizes) != 2 or text.count("x") != 1:
        return None
    number, devices = sizes
    if not (1 <= number <= hosts.max and hosts.min_devices <= devices <= hosts.max_devices):
        return None
    return Topology(hosts=number, devices_per_host=devices)


def _host_words(hosts: HostRange) -> str:
    least = f"{hosts.min_devices} to " if hosts.min_devices > 1 else "at most "
    devices = f"{least}{hosts.max_devices} devices per host"
    if hosts.min_devices == hosts.max_devices:
        devices = f"{hosts.max_devices} devices per host"
    example = f"1x{min(8, hosts.max_devices)}"
    return f"hosts x devices per host, such as {example}, with at most {hosts.max} hosts and {devices}"
