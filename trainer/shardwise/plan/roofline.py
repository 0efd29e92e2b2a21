"""The least seconds that a step can take on its hardware, and what binds: arithmetic, memory, or one of the links.

A bound, not a forecast: nothing waits for anything but what its program waits for. Collectives that run beside
computation take the time of the slowest of both; those that do not come on top. Bandwidths are the class's.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from shardwise.job.accelerators import accelerator_of
from shardwise.job.spec.accelerator import AcceleratorSpec
from shardwise.plan.collectives import Collective
from shardwise.plan.compiled import Step
from shardwise.plan.result import Bound, Flops, Link, MemoryUse

_WORDS: dict[Link, str] = {
    "ici": "the links between chips",
    "nvlink": "NVLink",
    "network": "the network",
    "memory": "memory",
}


def link_of(step: Step, row: Collective) -> Link:
    """Return the slowest link that a collective crosses."""
    group = _group(step, row)
    if group[0].platform == "cpu":
        return "memory"
    if group[0].platform == "tpu":
        slices = {getattr(device, "slice_index", None) for device in group}
        return "network" if len(slices) > 1 or not row.group else "ici"
    return "network" if len({_host(step, device) for device in group}) > 1 else "nvlink"


def roofline(step: Step, rows: Iterable[Collective], memory: MemoryUse, flops: Flops) -> Bound | None:
    """Return the bound of a step, or None if the class gives too little of its devices.

    Args:
        step: compiled.
        rows: its collectives.
        memory: what it holds.
        flops: its arithmetic.
    """
    spec = accelerator_of(step.job.spec.hardware).spec
    if spec.peak_flops is None or spec.memory_bandwidth is None or spec.interconnect is None:
        return None
    devices = step.program.layout.mesh.size
    dtype = step.job.spec.training.precision.compute
    peak = devices * spec.peak_flops.per_second(dtype)
    times: dict[bool, dict[Link, float]] = {True: {}, False: {}}
    for row in rows:
        link = link_of(step, row)
        seconds = row.wire_bytes / _bandwidth(step, spec, row, link)
        hidden = row.asynchronous_wire_bytes / row.wire_bytes if row.wire_bytes else 0.0
        for asynchronous, share in ((True, hidden), (False, 1 - hidden)):
            if share:
                times[asynchronous][link] = times[asynchronous].get(link, 0.0) + share * seconds
    beside, alone = times[True], times[False]
    # The state is once read and once written, gradients and kept activations likewise.
    traffic = 2.0 * (memory.parameters + memory.optimizer + memory.gradients + memory.activations)
    terms = {"arithmetic": flops.program / peak, "memory": traffic / float(spec.memory_bandwidth.value)}
    # What runs side by side takes the time of the slowest; what computation waits for comes on top.
    least = max(*terms.values(), *beside.values()) + sum(alone.values())
    by_link = {_WORDS[link]: beside.get(link, 0.0) + alone.get(link, 0.0) for link in {*beside, *alone}}
    return Bound(
        seconds=least,
        mfu=flops.model / peak / least,
        binds=max(terms | by_link, key=lambda name: (terms | by_link)[name]),
        compute_seconds=terms["arithmetic"],
        memory_seconds=terms["memory"],
        asynchronous_seconds=beside,
        synchronous_seconds=alone,
    )


def _bandwidth(step: Step, spec: AcceleratorSpec, row: Collective, link: Link) -> float:
    """Return the bytes a second that one device sends in a collective."""
    assert spec.interconnect is not None
    one = float(spec.interconnect.bandwidth.value)
    group = _group(step, row)
    if link == "nvlink":
        return one
    if link == "ici":
        return one * _links(step, spec, group)
    # Each device of a host that has a group of its own shares the host's network with the others; so does each of a
    # TPU's, whose host sends to other slices what is that device's.
    network = network_of(spec, step.topology.machine)
    at_home = sum(_host(step, device) == _host(step, group[0]) for device in group) if row.group else 1
    return network * at_home / step.topology.devices_per_host


def _links(step: Step, spec: AcceleratorSpec, group: Sequence[Any]) -> int:
    """Return over how many links a device of this group sends at once: two a side that closes to a ring, else one."""
    assert spec.interconnect is not None
    sides = [int(side) for side in step.job.spec.hardware.topology.split("x")]
    least = spec.interconnect.ring_from
    closed = [least is not None and side >= least for side in sides]
    if spec.interconnect.axes == 3:  # the sides close together or not at all: see `ringFrom`
        closed = [all(closed)] * len(sides)
    coords = np.array([device.coords for device in group])[:, : len(sides)]
    spanned = [len(set(column)) for column in coords.T]
    # A group that covers only part of a ring cannot send around it.
    links = sum(
        (2 if ring and number == side else 1)
        for number, side, ring in zip(spanned, sides, closed, strict=True)
        if number > 1
    )
    return max(1, links)


def network_of(spec: AcceleratorSpec, machine: str) -> float:
    """Return the bytes a second that a host of this machine sends."""
    said = [one.network_bandwidth for one in spec.machines if one.name == machine]
    found = said[0] if said else (spec.hosts.network_bandwidth if spec.hosts else None)
    return float(found.value) if found is not None else float("inf")


def _group(step: Step, row: Collective) -> list[jax.Device]:
    """Return the devices of a collective: the first that differ along its axes alone, or of these the first group.

    Of a permute all count, though each sends to one: together they send around the axis.
    """
    mesh = step.program.layout.mesh
    index = tuple(slice(None) if name in row.axes else 0 for name in mesh.axis_names)
    along = list(np.ravel(mesh.devices[index]))
    is_part = row.kind != "collective-permute" and 0 < len(row.group) < len(along)
    return [mesh.devices.flat[number] for number in row.group] if is_part else along


def _host(step: Step, device: jax.Device) -> int:
    """Return the host of a device; GPUs are counted, since a description of them knows no hosts."""
    if device.platform == "tpu":
        return int(device.process_index)
    return int(device.id) // step.topology.devices_per_host
