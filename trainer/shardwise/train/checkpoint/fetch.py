"""Read the arrays of a checkpoint straight into their shardings, several chunks at a time.

Each chunk is read once, whatever the number of devices that want a part of it, and its crc32c is checked. The reader
has found the manifest sound before, and checks the digests afterwards. This module decides nothing and never writes.
"""

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from shardwise.protocol.errors import CheckpointError
from shardwise.protocol.storage import first_line, in_words, with_retries
from shardwise.train.checkpoint import layout, zarr
from shardwise.train.checkpoint.chunks import Refusal, read_chunk
from shardwise.train.checkpoint.manifest import ArrayEntry, Manifest, array_directory
from shardwise.train.checkpoint.store import Store
from shardwise.train.host_memory import HOST, is_on_host

_NUM_CHUNKS_AT_ONCE = min(16, max(8, os.cpu_count() or 1))
"""Each may keep a chunk's worth of memory beside the arrays, so too many cost."""
_NUM_CHUNKS_AHEAD = 4 * _NUM_CHUNKS_AT_ONCE
"""So many wait for their turn; the buffers of arrays beyond them are not made yet."""
_ALIGNMENT_BYTES = 64
"""From which on JAX takes a numpy array on CPU as it is, without a copy."""
_HUGE_PAGE_BYTES = 2 << 20
"""A whole page of this size is mapped by one fault instead of 512, if the kernel gives such pages."""


class _Scratch(threading.local):
    """A thread's memory for a chunk that does not lie in one piece where it is wanted."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def take(self, num_bytes: int) -> np.ndarray:
        """Return uint8[bytes]: the memory of the last call if that is large enough."""
        if self._memory.size < num_bytes:
            self._memory = _aligned((num_bytes,), np.dtype(np.uint8))
        return self._memory[:num_bytes]


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """An array on its way: the buffer of each box that this process holds, and the reads that fill them."""

    path: str
    buffers: Mapping[layout.Region, np.ndarray]
    holders: Mapping[layout.Region, Sequence[layout.Device]]
    reads: Sequence[Future[None]]


def fetch(
    store: Store, manifest: Manifest, wanted: Mapping[str, jax.ShapeDtypeStruct], beat: Callable[[], None]
) -> Iterator[tuple[str, jax.Array]]:
    """Yield (path, array) as each one is complete, starting with the largest; call `beat` after each chunk.

    Raise `Refusal` at the first that is damaged, and `StorageError` or `CheckpointError` if the store cannot be
    read: after some tries, or because a person has to change something.
    """
    paths = sorted(wanted, key=lambda path: (-math.prod(wanted[path].shape), path))
    scratch = _Scratch()
    begun: deque[_Reading] = deque()
    with (
        store.objects() as objects,
        ThreadPoolExecutor(_NUM_CHUNKS_AT_ONCE, thread_name_prefix="checkpoint-read") as pool,
    ):
        read_into = partial(read_chunk, store, objects, manifest.step)
        try:
            for path in paths:
                while sum(not read.done() for reading in begun for read in reading.reads) > _NUM_CHUNKS_AHEAD:
                    yield _finish(store, begun.popleft(), wanted, beat)
                begun.append(_begin(pool, read_into, manifest, path, wanted[path], scratch))
            while begun:
                yield _finish(store, begun.popleft(), wanted, beat)
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(
    pool: ThreadPoolExecutor,
    read_into: Callable[[str, ArrayEntry, layout.Cell, np.ndarray], None],
    manifest: Manifest,
    path: str,
    abstract: jax.ShapeDtypeStruct,
    scratch: _Scratch,
) -> _Reading:
    entry = manifest.arrays[path]
    assert abstract.sharding is not None
    holders = layout.shard_regions(entry.shape, abstract.sharding)
    buffers = {box: _aligned(box.size, abstract.dtype) for box in holders}
    wanted: dict[layout.Cell, list[layout.Region]] = {}
    for box in buffers:
        for cell in layout.cells_over(box, entry.chunk_shape):
            wanted.setdefault(cell, []).append(box)

    def read(cell: layout.Cell, boxes: Sequence[layout.Region]) -> None:
        """Read a chunk into the one box that holds it in one piece or, by way of a copy, into all that want it."""
        chunk = layout.cell_region(cell, entry.chunk_shape)
        parts = [
            (buffers[box][overlap.within(box)], overlap) for box in boxes if (overlap := chunk.overlap(box)) is not None
        ]
        place = parts[0][0]
        is_whole = place.shape == entry.chunk_shape and place.flags.c_contiguous
        values = place if is_whole else _chunk_in(scratch, entry, abstract.dtype)
        memory = values.reshape(-1).view(np.uint8)
        with_retries(partial(read_into, array_directory(path), entry, cell, memory))
        if not is_whole:
            for place, overlap in parts:
                np.copyto(place, values[overlap.within(chunk)])

    reads = [pool.submit(read, cell, boxes) for cell, boxes in wanted.items()]
    return _Reading(path=path, buffers=buffers, holders=holders, reads=reads)


def _chunk_in(scratch: _Scratch, entry: ArrayEntry, dtype: np.dtype[Any]) -> np.ndarray:
    return scratch.take(math.prod(entry.chunk_shape) * dtype.itemsize).view(dtype).reshape(entry.chunk_shape)


def _finish(
    store: Store, reading: _Reading, wanted: Mapping[str, jax.ShapeDtypeStruct], beat: Callable[[], None]
) -> tuple[str, jax.Array]:
    try:
        for read in reading.reads:
            read.result()
            beat()
    except Refusal as refusal:
        raise Refusal(f"{reading.path}: {refusal}") from refusal
    except (OSError, ValueError) as error:  # TensorStore raises ValueError for whatever it finds
        if isinstance(error, OSError) or zarr.is_out_of_reach(error):
            raise in_words(error, f"{store.root} cannot be read: {first_line(error)}", CheckpointError) from error
        raise Refusal(f"{reading.path}: {first_line(error)}") from error
    abstract = wanted[reading.path]
    assert abstract.sharding is not None
    kind = HOST if is_on_host(abstract.sharding) else None
    placed = [
        array for box, devices in reading.holders.items() for array in _place(reading.buffers[box], devices, kind)
    ]
    return reading.path, jax.make_array_from_single_device_arrays(abstract.shape, abstract.sharding, placed)


def _place(buffer: np.ndarray, devices: Sequence[layout.Device], kind: str | None) -> Iterator[jax.Array]:
    """Place one array on each device, or in its memory of this kind.

    On CPU JAX takes the buffer itself, so devices after the first get a copy.
    """
    for number, device in enumerate(devices):
        values = buffer
        if number and device.platform == "cpu":
            values = _aligned(buffer.shape, buffer.dtype)
            np.copyto(values, buffer)
        yield jax.device_put(values, SingleDeviceSharding(device, memory_kind=kind) if kind else device)


def _aligned(shape: layout.Shape, dtype: np.dtype[Any]) -> np.ndarray:
    num_bytes = math.prod(shape) * dtype.itemsize
    alignment = _HUGE_PAGE_BYTES if num_bytes >= _HUGE_PAGE_BYTES else _ALIGNMENT_BYTES
    memory = np.empty(num_bytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + num_bytes].view(dtype).reshape(shape)
