"""Which process writes which part of an array, and how the parts are cut into files and chunks. Pure.

An array becomes a regular grid of files. A file starts as what one device holds; it is then

- cut over the processes that hold the same values, if the pieces stay large enough to be worth a file each,
- or, if it is small, joined with its neighbours of the same process, so that it is one file and not eight.

A large file is cut into chunks, which is what a reader fetches, so that another mesh reads little in vain.
Every process computes the same plan from the sharding alone. The reader takes the shapes from the manifest and only
shares the grid's arithmetic.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Protocol, cast

from jax.sharding import Sharding

from shardwise.job.rounding import num_parts

MIN_REPLICA_PIECE_BYTES = 1 << 20
JOIN_UP_TO_BYTES = 16 << 20
CUT_ABOVE_BYTES = 32 << 20
MIN_CHUNK_BYTES = 1 << 20

_Index = tuple[slice, ...] | None
Shape = tuple[int, ...]
Cell = tuple[int, ...]
"""Place of a file or chunk in its grid, one number per dimension."""


class Device(Protocol):
    """The part of a JAX device that this module uses."""

    @property
    def id(self) -> int:
        """Unique over all processes."""

    @property
    def process_index(self) -> int:
        """The process that owns it."""

    @property
    def platform(self) -> str:
        """Kind of device: cpu, gpu or tpu."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The cut of one array: `file_shape` divides the array, `chunk_shape` the file; `writers` is {file: process}."""

    file_shape: Shape
    chunk_shape: Shape
    writers: Mapping[Cell, int]


@dataclass(frozen=True, kw_only=True)
class Region:
    """A box of an array: first index and size in every dimension."""

    start: Shape
    size: Shape

    @property
    def slices(self) -> tuple[slice, ...]:
        """Return the box as an index into the whole array."""
        return tuple(slice(start, start + size) for start, size in zip(self.start, self.size, strict=True))

    def overlap(self, other: "Region") -> "Region | None":
        """Return what both boxes cover, or None."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(
            min(a + n, b + m) for a, n, b, m in zip(self.start, self.size, other.start, other.size, strict=True)
        )
        if any(first >= last for first, last in zip(start, stop, strict=True)):
            return None
        return Region(start=start, size=tuple(last - first for first, last in zip(start, stop, strict=True)))

    def within(self, outer: "Region") -> "tuple[slice | EllipsisType, ...]":
        """Return this box as an index into the values of `outer`, which holds it; a view even of a scalar."""
        steps = zip(self.start, outer.start, self.size, strict=True)
        return *(slice(start - first, start - first + size) for start, first, size in steps), ...


def plan(shape: Shape, itemsize_bytes: int, sharding: Sharding) -> Layout:
    """Return the cut of an array of `shape` whose values lie as `sharding` says."""
    shard = sharding.shard_shape(shape)
    holders = _holders(shape, shard, sharding)
    shard, holders = _share_replicas(shard, holders, itemsize_bytes)
    shard, holders = _join(shape, shard, holders, itemsize_bytes)
    chunk = _cut(shard, itemsize_bytes)
    return Layout(file_shape=shard, chunk_shape=chunk, writers={cell: devices[0] for cell, devices in holders.items()})


def shard_regions(shape: Shape, sharding: Sharding) -> dict[Region, list[Device]]:
    """Return the distinct boxes that this process's devices hold, and the devices of each, by device number."""
    regions: dict[Region, list[Device]] = {}
    placed = cast("Mapping[Device, _Index]", sharding.addressable_devices_indices_map(shape))
    for device, index in placed.items():
        regions.setdefault(region(shape, index or ()), []).append(device)
    return {box: sorted(devices, key=lambda device: device.id) for box, devices in regions.items()}


def region(shape: Shape, index: Sequence[slice]) -> Region:
    """Return the box that `index` selects from an array of `shape`."""
    bounds = [one.indices(size)[:2] for one, size in zip(index, shape, strict=True)]
    return Region(start=tuple(first for first, _ in bounds), size=tuple(last - first for first, last in bounds))


def cell_region(cell: Cell, cell_shape: Shape) -> Region:
    """Return the box of one cell of a regular grid."""
    return Region(start=tuple(place * size for place, size in zip(cell, cell_shape, strict=True)), size=cell_shape)


def cells_over(box: Region, cell_shape: Shape) -> Iterator[Cell]:
    """Yield the cells of a regular grid that `box` touches, in row-major order."""
    return itertools.product(
        *(
            range(start // cell, num_parts(start + size, cell))
            for start, size, cell in zip(box.start, box.size, cell_shape, strict=True)
        )
    )


def _holders(shape: Shape, shard: Shape, sharding: Sharding) -> dict[Cell, list[int]]:
    """Return {cell of the grid of shards: processes that hold it, each once, in the order of their device numbers}."""
    holders: dict[Cell, list[int]] = {}
    placed = cast("Mapping[Device, _Index]", sharding.devices_indices_map(shape))
    for device, index in sorted(placed.items(), key=lambda item: (item[0].process_index, item[0].id)):
        start = region(shape, index or ()).start
        cell = tuple(first // size for first, size in zip(start, shard, strict=True))
        processes = holders.setdefault(cell, [])
        if device.process_index not in processes:
            processes.append(device.process_index)
    return holders


def _share_replicas(
    shard: Shape, holders: dict[Cell, list[int]], itemsize_bytes: int
) -> tuple[Shape, dict[Cell, list[int]]]:
    """Cut a shard that several processes hold into one piece for each, or into as many as stay large."""
    replicas = min(len(processes) for processes in holders.values())
    for pieces in range(replicas, 1, -1):
        dimension = next((d for d, size in enumerate(shard) if size % pieces == 0), None)
        if dimension is None or math.prod(shard) * itemsize_bytes < pieces * MIN_REPLICA_PIECE_BYTES:
            continue
        piece = _replaced(shard, dimension, shard[dimension] // pieces)
        shared = {}
        for cell, processes in holders.items():
            for part in range(pieces):
                place = _replaced(cell, dimension, cell[dimension] * pieces + part)
                shared[place] = [processes[part * len(processes) // pieces]]
        return piece, shared
    return shard, holders


def _join(
    shape: Shape, shard: Shape, holders: dict[Cell, list[int]], itemsize_bytes: int
) -> tuple[Shape, dict[Cell, list[int]]]:
    """Join neighbours, the last dimension first, while one process holds them all and the file stays small."""
    for dimension in reversed(range(len(shape))):
        count = shape[dimension] // shard[dimension]
        for factor in sorted((n for n in range(2, count + 1) if count % n == 0), reverse=True):
            if math.prod(shard) * factor * itemsize_bytes > JOIN_UP_TO_BYTES:
                continue
            joined = _joined(holders, dimension, factor)
            if all(joined.values()):
                shard, holders = _replaced(shard, dimension, shard[dimension] * factor), joined
                break
    return shard, holders


def _joined(holders: dict[Cell, list[int]], dimension: int, factor: int) -> dict[Cell, list[int]]:
    joined: dict[Cell, list[int]] = {}
    for cell, processes in holders.items():
        place = _replaced(cell, dimension, cell[dimension] // factor)
        joined[place] = [process for process in joined.get(place, processes) if process in processes]
    return joined


def _cut(shard: Shape, itemsize_bytes: int) -> Shape:
    """Halve (or third ...) a file, the first dimension first, until its chunks are small enough to fetch."""
    chunk = shard
    while (num_bytes := math.prod(chunk) * itemsize_bytes) > CUT_ABOVE_BYTES:
        factor, dimension = min((_smallest_factor(size), d) for d, size in enumerate(chunk) if size > 1)
        if num_bytes // factor < MIN_CHUNK_BYTES:
            break
        chunk = _replaced(chunk, dimension, chunk[dimension] // factor)
    return chunk


def _smallest_factor(number: int) -> int:
    return next((n for n in range(2, math.isqrt(number) + 1) if number % n == 0), number)


def _replaced(numbers: tuple[int, ...], place: int, number: int) -> tuple[int, ...]:
    return (*numbers[:place], number, *numbers[place + 1 :])
