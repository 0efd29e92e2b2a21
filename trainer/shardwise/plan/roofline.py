"""The least seconds that a step can take on its hardware, and what binds: arithmetic, memory, or one of the links.

Called by the plan. A bound, not a forecast: nothing waits for anything but what its program waits for. Collectives that
run beside computation take the time of the slowest of both; those that do not come on top. Bandwidths are the class's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np

from shardwise.job.accelerators import offered
from shardwise.job.spec.accelerator import AcceleratorSpec
from shardwise.job.topology import topology_of
from shardwise.plan.collectives import Collective
from shardwise.plan.compiled import Step
from shardwise.plan.memory import Memory

Link = Literal["ici", "nvlink", "network", "memory"]


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Seconds of one step."""

    compute: float
    memory: float
    asynchronous: dict[Link, float]
    """On each link, of what runs beside computation."""
    synchronous: dict[Link, float]
    """On each link, of what computation waits for."""
    model_flops: float
    peak_flops: float
    """FLOP/s of all devices."""

    @property
    def seconds(self) -> float:
        """The least time of a step."""
        return max(self.compute, self.memory, *self.asynchronous.values(), 0.0) + sum(self.synchronous.values())

    @property
    def mfu(self) -> float:
        """The share of the peak that the model's own FLOPs can reach."""
        return self.model_flops / self.peak_flops / self.seconds

    @property
    def binds(self) -> str:
        """The largest term, in words."""
        terms = {"arithmetic": self.compute, "memory": self.memory}
        for link in {*self.asynchronous, *self.synchronous}:
            terms[_WORDS[link]] = self.asynchronous.get(link, 0.0) + self.synchronous.get(link, 0.0)
        return max(terms, key=lambda name: terms[name])


_WORDS: dict[Link, str] = {
    "ici": "the links between chips",
    "nvlink": "NVLink",
    "network": "the network",
    "memory": "memory",
}


def link_of(step: Step, axes: Sequence[str]) -> Link:
    """What a collective over these mesh axes crosses, at its slowest."""
    group = _group(step, axes)
    if group[0].platform == "cpu":
        return "memory"
    if group[0].platform == "tpu":
        slices = {getattr(device, "slice_index", None) for device in group}
        return "network" if len(slices) > 1 else "ici"
    return "network" if len({_host(step, device) for device in group}) > 1 else "nvlink"


def roofline(step: Step, rows: Iterable[Collective], memory: Memory, flops: float, model: float) -> Roofline | None:
    """The bound of a step; None where the class says too little of its devices.

    Args:
        step: compiled.
        rows: its collectives.
        memory: what it holds.
        flops: of the whole program, recomputation included, over all devices.
        model: of the model's formula.

    """
    spec = offered()[step.job.spec.hardware.accelerator].spec
    if spec.peak_flops is None or spec.memory_bandwidth is None or spec.interconnect is None:
        return None
    devices = step.program.layout.mesh.size
    dtype = step.job.spec.training.precision.compute
    peak = devices * float(getattr(spec.peak_flops, dtype).value)
    times: dict[bool, dict[Link, float]] = {True: {}, False: {}}
    for row in rows:
        link = link_of(step, row.axes)
        seconds = row.wire_bytes / _bandwidth(step, spec, row.axes, link)
        beside = row.asynchronous_wire_bytes / row.wire_bytes if row.wire_bytes else 0.0
        for asynchronous, share in ((True, beside), (False, 1 - beside)):
            if share:
                times[asynchronous][link] = times[asynchronous].get(link, 0.0) + share * seconds
    return Roofline(
        compute=flops / peak,
        memory=_least_traffic(memory) / float(spec.memory_bandwidth.value),
        asynchronous=times[True],
        synchronous=times[False],
        model_flops=model,
        peak_flops=peak,
    )


def _least_traffic(memory: Memory) -> float:
    """The state is read and written once, gradients and what is kept of the layers written and read once."""
    return 2.0 * (memory.parameters + memory.optimizer + memory.gradients + memory.activations)


def _bandwidth(step: Step, spec: AcceleratorSpec, axes: Sequence[str], link: Link) -> float:
    """Bytes a second that one device sends in a collective over these mesh axes."""
    assert spec.interconnect is not None
    one = float(spec.interconnect.bandwidth.value)
    group = _group(step, axes)
    if link == "nvlink":
        return one
    if link == "ici":
        return one * _links(step, spec, group)
    # Each device of a host that has a group of its own shares the host's network with the others.
    topology = topology_of(step.job.spec.hardware)
    assert topology is not None
    network = _network(spec, topology.machine)
    at_home = sum(_host(step, device) == _host(step, group[0]) for device in group)
    return network * at_home / topology.devices_per_host


def _links(step: Step, spec: AcceleratorSpec, group: Sequence[jax.Device]) -> int:
    """Links over which a device of this group can send at once: two for each side that closes to a ring, else one."""
    assert spec.interconnect is not None
    sides = [int(side) for side in step.job.spec.hardware.topology.split("x")]
    least = spec.interconnect.ring_from
    closed = [least is not None and side >= least for side in sides]
    if spec.interconnect.axes == 3:
        closed = [all(closed)] * len(sides)
    coords = np.array([_coords(device) for device in group])[:, : len(sides)]
    spanned = [len(set(column)) for column in coords.T]
    links = sum(
        (2 if ring and number == side else 1)
        for number, side, ring in zip(spanned, sides, closed, strict=True)
        if number > 1
    )
    return max(1, links)


def _network(spec: AcceleratorSpec, machine: str) -> float:
    said = [one.network_bandwidth for one in spec.machines if one.name == machine]
    found = said[0] if said else (spec.hosts.network_bandwidth if spec.hosts else None)
    return float(found.value) if found is not None else float("inf")


def _group(step: Step, axes: Sequence[str]) -> list[jax.Device]:
    """The first devices of the mesh that differ along these axes alone."""
    mesh = step.program.layout.mesh
    index = tuple(slice(None) if name in axes else 0 for name in mesh.axis_names)
    return list(np.ravel(mesh.devices[index]))


def _host(step: Step, device: jax.Device) -> int:
    """The host of a device; GPUs are counted, since a description of them knows no hosts."""
    if device.platform == "tpu":
        return int(device.process_index)
    topology = topology_of(step.job.spec.hardware)
    assert topology is not None
    return int(device.id) // topology.devices_per_host


def _coords(device: Any) -> tuple[int, ...]:
    return tuple(device.coords)
