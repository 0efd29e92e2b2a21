"""What moves in one step of a compiled program: each collective's bytes, how often, over which mesh axes and links.

The bytes on the wire are those of a ring, per device: a gather or scatter over g devices sends (g - 1) / g of the
whole, an all-reduce twice that, a permute all that it has. Rules for what GPUs combine into tuples and for what TPUs
cut into asynchronous pieces are below, each beside the code that needs it.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from shardwise.plan.hlo import Executed, Instruction, Module, arrays, members

Kind = Literal["all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all"]
_KINDS: tuple[Kind, ...] = get_args(Kind)
_START = "-start"
_SUMMED = ("count", "payload_bytes", "wire_bytes", "asynchronous", "asynchronous_wire_bytes")


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Collectives of one program that are alike, in one step of one device."""

    kind: Kind
    axes: tuple[str, ...]
    """The mesh axes that a group spans, outermost first."""
    devices: int
    """Those that talk with each other."""
    group: tuple[int, ...]
    """Those of the first group, numbered in the mesh's order; none where a TPU's host sends to another slice."""
    dtype: str
    count: int
    """How many run in a step."""
    payload_bytes: float
    """Of what comes out of a gather or all-reduce, or goes into a scatter, all runs together."""
    wire_bytes: float
    """Sent by each device, all runs together."""
    asynchronous: int
    """How many of them run beside computation."""
    asynchronous_wire_bytes: float
    largest_bytes: int
    """Payload of the largest one."""


def collectives(module: Module, mesh: Mapping[str, int]) -> list[Collective]:
    """Return a program's collectives over a mesh of these axes and sizes (outermost first), the most bytes first."""
    groups: dict[tuple[object, ...], list[Collective]] = {}
    for one in _found(module, mesh):  # along one axis some may cross slices, and others not
        groups.setdefault((one.kind, one.axes, one.dtype, one.devices, not one.group), []).append(one)
    rows = [_together(alike) for alike in groups.values()]
    return sorted(rows, key=lambda row: -row.wire_bytes)


def _together(alike: list[Collective]) -> Collective:
    sums = {name: sum(getattr(one, name) for one in alike) for name in _SUMMED}
    return replace(alike[0], **sums, largest_bytes=max(one.largest_bytes for one in alike))


def _collective(
    kind: Kind,
    axes: tuple[str, ...],
    devices: int,
    dtype: str,
    times: int,
    whole: int,
    *,
    asynchronous: bool,
    group: Sequence[int] = (),
) -> Collective:
    """Return what one instruction moves in all its runs, of `whole` bytes each time."""
    share = 1.0 if kind == "collective-permute" else (devices - 1) / devices * (2 if kind == "all-reduce" else 1)
    wire_bytes = times * (whole * share)
    return Collective(
        kind=kind,
        axes=axes,
        devices=devices,
        group=tuple(group),
        dtype=dtype,
        count=times,
        payload_bytes=times * whole,
        wire_bytes=wire_bytes,
        asynchronous=times * asynchronous,
        asynchronous_wire_bytes=wire_bytes * asynchronous,
        largest_bytes=whole,
    )


def _found(module: Module, mesh: Mapping[str, int]) -> Iterator[Collective]:
    chains: set[tuple[str, str]] = set()
    for executed in module.executed():
        if "_xla_megascale_transfer_type" in executed.instruction.attributes:
            if executed.instruction.op == "send":
                yield _between_slices(module, executed)
            continue
        kind = _kind(executed.instruction)
        if kind is None:
            continue
        chain = _chain(executed.instruction)
        if chain in chains:  # another piece of one that was counted
            continue
        if chain:
            chains.add(chain)
        if executed.times == 0:
            loop = executed.callers[-1].instruction.name
            raise ValueError(
                f"{executed.instruction.name} in {loop}: the program does not say how often this loop runs"
            )
        asynchronous = chain is not None or _runs_beside(module, executed)
        yield from _arrays_of(executed, kind, mesh, asynchronous=asynchronous)


def _between_slices(module: Module, executed: Executed) -> Collective:
    """Yield what TPUs hand to their hosts to sum with other slices: sends and receives that name a collective.

    A slice is a row of `replica`. A step has next to nothing to compute but products and loops, so one that runs beside
    neither of them runs alone.
    """
    attributes = executed.instruction.attributes
    array = executed.instruction.results[0]
    transfer = re.search(r'transfer_type="(\w+)"', attributes)
    slices = re.search(r'megascale_target="\{([\d,:]+)\}', attributes)
    rendezvous = re.search(r'rendezvous="([^"]+)"', attributes)
    assert transfer, attributes
    assert slices, attributes
    assert rendezvous, attributes
    kind = transfer[1].lower().replace("_", "-")
    assert kind in _KINDS, attributes
    line = module.computations[executed.computation]
    received = next(one.name for one in line if one.op == "recv" and f'"{rendezvous[1]}"' in one.attributes)
    awaited = next(at for at, one in enumerate(line) if one.op == "recv-done" and received in one.operand_names)
    meanwhile = line[line.index(executed.instruction) : awaited]
    devices = sum(_length(part) for part in slices[1].split(","))
    beside = any(module.is_heavy(one) for one in meanwhile)
    return _collective(kind, ("replica",), devices, array.dtype, executed.times, array.bytes, asynchronous=beside)


def _length(part: str) -> int:
    """Return the length of a number, or of a range such as `1:4`."""
    first, _, last = part.partition(":")
    return int(last or first) - int(first) + 1


def _kind(instruction: Instruction) -> Kind | None:
    return next((kind for kind in _KINDS if instruction.op in (kind, kind + _START)), None)


def _chain(instruction: Instruction) -> tuple[str, str] | None:
    """Return what the pieces have in common into which a TPU's compiler cuts an asynchronous collective."""
    chain = re.search(r'chain_id="(\w+)"', instruction.attributes)
    channel = re.search(r"channel_id=(\d+)", instruction.attributes)
    return (chain[1], channel[1] if channel else "") if chain else None


def _runs_beside(module: Module, executed: Executed) -> bool:
    """Return whether something is computed between a collective's start and its end.

    The start is its own, or that of a call around it, by which a TPU hands it to a SparseCore. What a GPU's compiler
    starts and marks as synchronous runs alone.
    """
    if "async_collective_name" in executed.instruction.attributes:
        return True
    starts = [one for one in (*executed.callers, executed) if one.instruction.op.endswith(_START)]
    return any('"is_sync":true' not in one.instruction.attributes and module.overlaps(one) for one in starts)


def _arrays_of(executed: Executed, kind: Kind, mesh: Mapping[str, int], *, asynchronous: bool) -> Iterator[Collective]:
    """Yield one collective for each array, since compilers combine collectives of several."""
    instruction = executed.instruction
    of_type = instruction.type
    if instruction.op.endswith(_START) and kind != "all-reduce":  # (operands, results, contexts)
        parts = members(of_type)
        of_type = parts[1] if len(parts) > 1 else parts[0]
    group = _group(instruction, kind)
    if len(group) == 1:
        return
    # A device's result is one part of what it scatters.
    parts_of_whole = len(group) if kind == "reduce-scatter" else 1
    # An all-reduce in a fusion of this name is what a TPU's compiler makes of a reduce-scatter.
    fused = (executed.computation, *(one.instruction.name for one in executed.callers))
    if kind == "all-reduce" and any("all-reduce-scatter" in name for name in fused):
        kind = "reduce-scatter"
    for array in arrays(of_type):
        whole = array.bytes * parts_of_whole
        axes, times = _axes(group, mesh), executed.times
        yield _collective(kind, axes, len(group), array.dtype, times, whole, asynchronous=asynchronous, group=group)


def _axes(group: Sequence[int], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Return the mesh axes along which the members of a group differ; partitions are numbered in the mesh's order."""
    places = np.array(np.unravel_index(np.array(group), tuple(mesh.values())))
    differ = (places != places[:, :1]).any(axis=1)
    return tuple(name for name, differs in zip(mesh, differ, strict=True) if differs)


def _group(instruction: Instruction, kind: Kind) -> list[int]:
    """Return the first group of partitions that talk with each other, in any of HLO's notations."""
    attributes = instruction.attributes
    if kind == "collective-permute":
        pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", attributes)
        assert pairs, instruction
        numbers = [[int(one) for one in pair.split(",")] for pair in re.findall(r"\{([\d,]+)\}", pairs[1])]
        return next((pair for pair in numbers if pair[0] != pair[1]), [0])  # there may be no pair at all
    if named := re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}", attributes
    ):
        return _named_group(*named.groups())
    if iota := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes):
        return [int(one) for one in _iota(iota[2], iota[3]).reshape(_whole_numbers(iota[1]))[0]]
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", attributes)
    assert listed, instruction
    return _whole_numbers(listed[1])


def _named_group(axes: str, dims: str | None, turned: str | None, over: str) -> list[int]:
    """Return a group of the notation `mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}`."""
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", axes)}
    number = math.prod(sizes.values())
    order = _iota(dims, turned) if dims else np.arange(number)
    inside = [list(sizes).index(name) for name in re.findall(r"'(\w+)'", over)]
    others = [axis for axis in range(len(sizes)) if axis not in inside]
    width = math.prod(list(sizes.values())[axis] for axis in inside)
    groups = order.reshape(tuple(sizes.values())).transpose(others + inside).reshape(-1, width)
    return [int(one) for one in groups[0]]


def _iota(dims: str, turned: str | None) -> np.ndarray:
    shape = _whole_numbers(dims)
    order = _whole_numbers(turned) if turned else list(range(len(shape)))
    return np.arange(math.prod(shape)).reshape(shape).transpose(order)


def _whole_numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
