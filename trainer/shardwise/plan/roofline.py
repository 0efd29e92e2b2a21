"""The least seconds that a step can take on its hardware, and what binds: arithmetic, memory, or one of the links.

A bound, not a forecast: nothing waits for anything but what its program waits for. Collectives that run beside
computation take the time of the slowest of both; those that do not come on top. Bandwidths are the class's.
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
        """Return the least time of a step."""
        # What runs side by side takes the time of the slowest; what computation waits for comes on top.
        return max(self.compute, self.memory, *self.asynchronous.values(), 0.0) + sum(self.synchronous.values())

    @property
    def mfu(self) -> float:
        """Return the share of the peak that the model's own FLOPs can reach."""
        return self.model_flops / self.peak_flops / self.seconds

    @property
    def binds(self) -> str:
        """Return the name of the largest term."""
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
    """Return the slowest link that a collective over these mesh axes crosses."""
    group = _group(step, axes)
    if group[0].platform == "cpu":
        return "memory"
    if group[0].platform == "tpu":
        slices = {getattr(device, "slice_index", None) for device in group}
        return "network" if len(slices) > 1 else "ici"
    return "network" if len({_host(step, device) for device in group}) > 1 else "nvlink"


def roofline(step: Step, rows: Iterable[Collective], memory: Memory, flops: float, model: float) -> Roofline | None:
    """Return the bound of a step, or None if the class gives too little of its devices.

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
    """Return the bytes: the state once read and once written, gradients and kept activations likewise."""
    return 2.0 * (memory.parameters + memory.optimizer + memory.gradients + memory.activations)


def _bandwidth(step: Step, spec: AcceleratorSpec, axes: Sequence[str], link: Link) -> float:
    """Return the bytes a second that one device sends in a collective over these mesh axes."""
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
    """Return over how many links a device of this group sends at once: two a side that closes to a ring, else one."""
    assert spec.interconnect is not None
    sides = [int(side) for side in step.job.spec.hardware.topology.split("x")]
    least = spec.interconnect.ring_from
    closed = [least is not None and side >= least for side in sides]
    if spec.interconnect.axes == 3:  # the sides close together or not at all: see `ringFrom`
        closed = [all(closed)] * len(sides)
    coords = np.array([_coords(device) for device in group])[:, : len(sides)]
    spanned = [len(set(column)) for column in coords.T]
    # A group that covers only part of a ring cannot send around it.
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
    """Return the first devices of the mesh that differ along these axes alone."""
    mesh = step.program.layout.mesh
    index = tuple(slice(None) if name in axes else 0 for name in mesh.axis_names)
    return list(np.ravel(mesh.devices[index]))


def _host(step: Step, device: jax.Device) -> int:
    """Return the host of a device; GPUs are counted, since a description of them knows no hosts."""
    if device.platform == "tpu":
        return int(device.process_index)
    topology = topology_of(step.job.spec.hardware)
    assert topology is not None
    return int(device.id) // topology.devices_per_host


def _coords(device: Any) -> tuple[int, ...]:
    return tuple(device.coords)
