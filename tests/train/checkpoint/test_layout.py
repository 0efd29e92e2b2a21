"""The cut of an array over writers, files and chunks, for meshes of several processes that are only described."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from jax.sharding import PartitionSpec

from shardwise.train.checkpoint.layout import (
    CUT_ABOVE_BYTES,
    JOIN_UP_TO_BYTES,
    MIN_REPLICA_PIECE_BYTES,
    Layout,
    Region,
    cell_region,
    cells_over,
    plan,
)

Index = tuple[slice, ...]


@dataclass(frozen=True)
class _Device:
    id: int
    process_index: int


class _Sharding:
    """A mesh (data, tensor) over devices of several processes, as far as `plan` asks."""

    def __init__(self, where: tuple[int, int], devices_per_process: int, spec: PartitionSpec) -> None:
        self.sizes = dict(zip(("data", "tensor"), where, strict=True))
        self.spec = spec
        self.devices = {
            place: _Device(number, number // devices_per_process) for number, place in enumerate(np.ndindex(where))
        }

    def shard_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(size // self.sizes.get(name, 1) for size, name in self._named(shape))

    def devices_indices_map(self, shape: tuple[int, ...]) -> Mapping[_Device, Index]:
        return {device: self._index(shape, place) for place, device in self.devices.items()}

    def _index(self, shape: tuple[int, ...], place: tuple[int, ...]) -> Index:
        coordinates = dict(zip(self.sizes, place, strict=True))
        starts = [coordinates.get(name, 0) for _, name in self._named(shape)]
        return tuple(slice(n * s, n * s + s) for n, s in zip(starts, self.shard_shape(shape), strict=True))

    def _named(self, shape: tuple[int, ...]) -> list[tuple[int, str]]:
        names = [*self.spec, *[None] * (len(shape) - len(self.spec))]
        return [(size, str(name)) for size, name in zip(shape, names, strict=True)]


def _plan(shape: tuple[int, ...], sharding: _Sharding) -> Layout:
    described: Any = sharding
    return plan(shape, 4, described)


SPECS = [PartitionSpec(), PartitionSpec("data"), PartitionSpec("tensor", "data"), PartitionSpec(None, "tensor")]
SHAPES = [(64, 64), (1024, 2048), (4096, 8192, 2), (8, 24), (50304, 768)]


@pytest.mark.parametrize("devices_per_process", [1, 2, 8])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_element_is_written_once_by_a_process_that_holds_it(
    shape: tuple[int, ...], spec: PartitionSpec, devices_per_process: int
) -> None:
    """The files tile the array, and each file's process has all its values on its own devices."""
    sharding = _Sharding((4, 2), devices_per_process, spec)
    cut = _plan(shape, sharding)
    whole = Region(start=(0,) * len(shape), size=shape)
    assert set(cut.writers) == set(cells_over(whole, cut.file_shape))
    assert all(size % file == 0 for size, file in zip(shape, cut.file_shape, strict=True))
    for cell, process in cut.writers.items():
        box = cell_region(cell, cut.file_shape)
        held = {
            overlap
            for device, index in sharding.devices_indices_map(shape).items()
            if device.process_index == process
            for part in [Region(start=tuple(i.start for i in index), size=sharding.shard_shape(shape))]
            if (overlap := box.overlap(part)) is not None
        }
        assert sum(math.prod(part.size) for part in held) == math.prod(box.size)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("shape", SHAPES)
def test_chunks_divide_files_and_are_small(shape: tuple[int, ...], spec: PartitionSpec) -> None:
    """A reader fetches a chunk: none is large, and only files of at most one chunk are small."""
    cut = _plan(shape, _Sharding((4, 2), 8, spec))
    assert all(file % chunk == 0 for file, chunk in zip(cut.file_shape, cut.chunk_shape, strict=True))
    assert math.prod(cut.chunk_shape) * 4 <= CUT_ABOVE_BYTES
    assert cut.chunk_shape == cut.file_shape or math.prod(cut.chunk_shape) * 4 > CUT_ABOVE_BYTES // 4


def test_replicas_share_the_writing() -> None:
    """Four processes that hold the same values write a quarter each."""
    cut = _plan((4096, 512), _Sharding((4, 2), 2, PartitionSpec()))
    assert cut.file_shape == (1024, 512)
    assert cut.writers == {(n, 0): n for n in range(4)}


def test_small_replicas_are_not_shared() -> None:
    """A piece below the least size is not worth a file of its own."""
    side = math.isqrt(MIN_REPLICA_PIECE_BYTES // 4)
    assert _plan((side, side), _Sharding((4, 2), 2, PartitionSpec())).file_shape == (side, side)


def test_one_process_joins_what_its_devices_hold() -> None:
    """Eight shards of a small array are one file; of a large one they stay apart."""
    assert _plan((64, 64), _Sharding((4, 2), 8, PartitionSpec("data", "tensor"))).file_shape == (64, 64)
    large = _plan((8192, 4096), _Sharding((4, 2), 8, PartitionSpec("data", "tensor")))
    assert large.file_shape == (2048, 2048)
    assert math.prod(large.file_shape) * 4 == JOIN_UP_TO_BYTES


def test_processes_do_not_share_a_file() -> None:
    """Shards of different processes are never joined, however small."""
    cut = _plan((64, 64), _Sharding((4, 2), 2, PartitionSpec("data", "tensor")))
    assert cut.file_shape == (16, 64)
    assert cut.writers == {(n, 0): n for n in range(4)}


def test_dimension_that_cannot_be_halved_is_left_whole() -> None:
    """A large prime dimension is not cut into single rows."""
    cut = _plan((50021, 1024), _Sharding((1, 1), 1, PartitionSpec()))
    assert cut.chunk_shape[0] == 50021
    assert cut.chunk_shape[1] < 1024
