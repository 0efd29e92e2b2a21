"""Reads the arrays of a checkpoint straight into their shardings, several at a time.

Each chunk is read once, whatever the number of devices that want a part of it, and its crc32c is checked. Called by the
reader, which has found the manifest sound and checks the digests of what comes. It decides nothing and never writes.
"""

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from shardwise.job.errors import CheckpointError
from shardwise.train.checkpoint import layout, zarr
from shardwise.train.checkpoint.manifest import ArrayEntry, Manifest, array_directory
from shardwise.train.checkpoint.store import Store

_NUM_ARRAYS_AT_ONCE = 4
_MAX_BYTES_IN_FLIGHT = 64 << 20
_NUM_FILES_AT_ONCE = max(4, os.cpu_count() or 1)
"""Each thread that reads keeps a chunk's worth of freed memory, so more of them than cores cost without a gain."""
_ALIGNMENT_BYTES = 64
"""From which on JAX takes a numpy array on CPU as it is, without a copy."""
_HUGE_PAGE_BYTES = 2 << 20
"""What lies in whole pages of this size is mapped by one fault each instead of 512, where the kernel gives them."""


class Refusal(Exception):  # noqa: N818 - it never leaves the package: the caller sees a CheckpointError or the next one
    """Why one checkpoint cannot be used."""


class _Budget:
    """Bytes that chunks on their way may take beside the arrays themselves, over all arrays of one restore."""

    def __init__(self) -> None:
        self._used_bytes = 0
        self._changed = threading.Condition()

    def take(self, num_bytes: int, *, wait: bool) -> bool:
        """Takes the bytes if they are free (a chunk above the whole budget goes alone); else waits, or says no."""
        with self._changed:
            fits = self._changed.wait_for(lambda: self._fits(num_bytes), None if wait else 0)
            self._used_bytes += num_bytes if fits else 0
            return fits

    def give_back(self, num_bytes: int) -> None:
        """Returns what `take` took."""
        with self._changed:
            self._used_bytes -= num_bytes
            self._changed.notify_all()

    def _fits(self, num_bytes: int) -> bool:
        return self._used_bytes == 0 or self._used_bytes + num_bytes <= _MAX_BYTES_IN_FLIGHT


def fetch(
    store: Store, manifest: Manifest, wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> Iterator[tuple[str, jax.Array]]:
    """(path, array) as each one is there, begun with the largest; raises `Refusal` at the first that is damaged."""
    context, budget = zarr.context(_NUM_FILES_AT_ONCE), _Budget()
    paths = sorted(wanted, key=lambda path: (-math.prod(wanted[path].shape), path))
    with ThreadPoolExecutor(_NUM_ARRAYS_AT_ONCE, thread_name_prefix="checkpoint-read") as pool:
        reads = {
            pool.submit(
                _read_array, store, manifest.step, path, manifest.arrays[path], wanted[path], context, budget
            ): path
            for path in paths
        }
        try:
            for read in as_completed(reads):
                yield reads[read], read.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _read_array(
    store: Store,
    step: int,
    path: str,
    entry: ArrayEntry,
    abstract: jax.ShapeDtypeStruct,
    context: ts.Context,
    budget: _Budget,
) -> jax.Array:
    spec = zarr.array_spec(
        store.spec(step, array_directory(path)), entry.shape, abstract.dtype, entry.file_shape, entry.chunk_shape
    )
    sharding = abstract.sharding
    assert sharding is not None
    holders = layout.shard_regions(entry.shape, sharding)
    buffers = {box: _aligned(box.size, abstract.dtype) for box in holders}
    try:
        _fill(ts.open(spec, open=True, context=context).result(), entry, buffers, budget)
    except ValueError as error:  # TensorStore raises ValueError for whatever it finds
        if zarr.is_out_of_reach(error):
            raise CheckpointError(f"{store.root} cannot be read: {zarr.first_line(error)}") from error
        raise Refusal(f"{path}: {zarr.first_line(error)}") from error
    placed = [array for box, devices in holders.items() for array in _place(buffers[box], devices)]
    return jax.make_array_from_single_device_arrays(entry.shape, sharding, placed)


def _fill(
    stored: ts.TensorStore, entry: ArrayEntry, buffers: Mapping[layout.Region, np.ndarray], budget: _Budget
) -> None:
    """Reads each chunk once, into the one buffer that wants it or, by way of a copy, into all that do."""
    wanted: dict[layout.Cell, list[layout.Region]] = {}
    for box in buffers:
        for cell in layout.cells_over(box, entry.chunk_shape):
            wanted.setdefault(cell, []).append(box)
    chunk_bytes = math.prod(entry.chunk_shape) * stored.dtype.numpy_dtype.itemsize
    in_flight: deque[tuple[Callable[[], None], int]] = deque()

    def finish_oldest() -> None:
        finish, num_bytes = in_flight.popleft()
        try:
            finish()
        finally:
            budget.give_back(num_bytes)

    try:
        for cell, boxes in wanted.items():
            num_bytes = chunk_bytes * (1 if len(boxes) == 1 else 2)
            while not budget.take(num_bytes, wait=not in_flight):
                finish_oldest()
            chunk = layout.cell_region(cell, entry.chunk_shape)
            in_flight.append((_start(stored, chunk, boxes, buffers), num_bytes))
    finally:
        while in_flight:
            finish_oldest()


def _start(
    stored: ts.TensorStore,
    chunk: layout.Region,
    boxes: list[layout.Region],
    buffers: Mapping[layout.Region, np.ndarray],
) -> Callable[[], None]:
    """Starts to read one chunk; what it returns waits, and leaves the values in the buffers."""
    parts = [(box, overlap) for box in boxes if (overlap := chunk.overlap(box)) is not None]
    if len(parts) == 1:
        box, overlap = parts[0]
        target = ts.array(buffers[box][overlap.within(box)])
        return target.write(stored[overlap.slices]).commit.result
    read = stored[chunk.slices].read()

    def scatter() -> None:
        values = read.result()
        for box, overlap in parts:
            np.copyto(buffers[box][overlap.within(box)], values[overlap.within(chunk)])

    return scatter


def _place(buffer: np.ndarray, devices: Sequence[layout.Device]) -> Iterator[jax.Array]:
    """One array on each device. On CPU JAX takes the buffer itself, so every device after the first gets a copy."""
    for number, device in enumerate(devices):
        values = buffer
        if number and device.platform == "cpu":
            values = _aligned(buffer.shape, buffer.dtype)
            np.copyto(values, buffer)
        yield jax.device_put(values, device)


def _aligned(shape: layout.Shape, dtype: np.dtype[Any]) -> np.ndarray:
    num_bytes = math.prod(shape) * dtype.itemsize
    alignment = _HUGE_PAGE_BYTES if num_bytes >= _HUGE_PAGE_BYTES else _ALIGNMENT_BYTES
    memory = np.empty(num_bytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + num_bytes].view(dtype).reshape(shape)
