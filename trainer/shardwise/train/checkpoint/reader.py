"""Restores a state from the newest checkpoint that is whole, straight into the shardings of the run.

    newest first:  marker -> manifest -> shapes -> every chunk's crc32c -> every array's digest

The first four find damage; the digest also finds what a checksum cannot, such as two chunks that changed places. A
checkpoint that fails is refused by name and the one before it is tried. Each chunk is read once, whatever the number of
devices that want a part of it. Called by the step loop, `generate` and `export`. It never writes.
"""

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import tensorstore as ts
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwise.job.contract import checkpoint_name
from shardwise.job.errors import CheckpointError
from shardwise.train.checkpoint import layout, zarr
from shardwise.train.checkpoint.manifest import MANIFEST, MARKER, ArrayEntry, Manifest, array_directory, decode
from shardwise.train.checkpoint.store import Store
from shardwise.train.digest import Digester, to_hex

_NUM_ARRAYS_AT_ONCE = 4
_MAX_BYTES_IN_FLIGHT = 64 << 20
_NUM_FILES_AT_ONCE = max(4, os.cpu_count() or 1)
"""Each thread that reads keeps a chunk's worth of freed memory, so more of them than cores cost without a gain."""
_ALIGNMENT_BYTES = 64
"""From which on JAX takes a numpy array on CPU as it is, without a copy."""

Report = Callable[[int, str], None]
"""Is told of each refused checkpoint: (step, reason)."""


@dataclass(frozen=True, kw_only=True)
class Restored:
    """The arrays of one checkpoint, the newer ones that were refused, and (if `partial`) the paths it does not hold."""

    step: int
    arrays: dict[str, jax.Array]
    manifest: Manifest
    refused: list[tuple[int, str]]
    missing: list[str]


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


class _Refusal(Exception):  # noqa: N818 - it never leaves this module: the caller sees a CheckpointError or the next one
    """Why one checkpoint cannot be used."""


def restore(
    root: str,
    abstract: Mapping[str, jax.ShapeDtypeStruct],
    *,
    step: int | None,
    digester: Digester,
    report: Report,
    partial: bool = False,
) -> Restored | None:
    """The newest usable checkpoint, or that of `step`, as arrays of the shapes, dtypes and shardings of `abstract`.

    `digester` was built for `abstract`. Arrays that the checkpoint holds beyond `abstract` are left alone; ones that it
    lacks are a reason to refuse it, unless `partial`. Returns None where nothing was ever committed. Raises
    `CheckpointError` if checkpoints were committed and none can be used, or if the one asked for cannot.
    """
    store = Store(root)
    steps = _reachable(store, store.steps)
    refused: list[tuple[int, str]] = []
    for candidate in [step] if step is not None else sorted(steps, reverse=True):
        try:
            manifest = _manifest(store, candidate)
            wanted = _wanted(manifest, abstract, partial=partial)
            arrays = _read(store, manifest, wanted)
            _verify(manifest, arrays, digester)
        except _Refusal as refusal:
            refused.append((candidate, str(refusal)))
            report(candidate, str(refusal))
        else:
            missing = sorted(abstract.keys() - wanted.keys())
            return Restored(step=candidate, arrays=arrays, manifest=manifest, refused=refused, missing=missing)
    if step is None and not any(steps.values()):
        return None
    raise CheckpointError(_none_usable(store, step, steps, refused))


def read_manifest(root: str, step: int) -> Manifest:
    """The manifest of a committed checkpoint; raises `CheckpointError` if it is damaged or not there."""
    try:
        return _manifest(Store(root), step)
    except _Refusal as refusal:
        raise CheckpointError(f"{root}/{checkpoint_name(step)}: {refusal}") from refusal


def steps(root: str) -> list[int]:
    """The committed steps, ascending."""
    store = Store(root)
    return [step for step, committed in _reachable(store, store.steps).items() if committed]


def load_numpy(root: str, step: int, prefix: str) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays whose path starts with `prefix`, verified, by path, one in memory at a time."""
    store, manifest = Store(root), read_manifest(root, step)
    whole = NamedSharding(Mesh(jax.local_devices()[:1], ("device",)), PartitionSpec())
    for path, entry in sorted(manifest.arrays.items()):
        if path.startswith(prefix):
            abstract = {path: jax.ShapeDtypeStruct(entry.shape, np.dtype(entry.dtype), sharding=whole)}
            try:
                arrays = _read(store, manifest, abstract)
                _verify(manifest, arrays, Digester(abstract))
            except _Refusal as refusal:
                raise CheckpointError(f"{root}/{checkpoint_name(step)}: {refusal}") from refusal
            yield path, np.asarray(arrays[path])


def _none_usable(store: Store, step: int | None, steps: Mapping[int, bool], refused: list[tuple[int, str]]) -> str:
    if step is not None:
        there = ", ".join(str(other) for other, committed in steps.items() if committed) or "none"
        return f"{store.root}/{checkpoint_name(step)} cannot be used: {refused[0][1]}. Committed steps there: {there}"
    reasons = "".join(f"\n  {checkpoint_name(refused_step)}: {reason}" for refused_step, reason in refused)
    return f"no checkpoint in {store.root} can be used:{reasons}"


def _reachable(store: Store, ask: Callable[[], Any]) -> Any:
    """What `ask` returns; a store that does not answer is an error at once, not a damaged checkpoint."""
    try:
        return ask()
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{store.root} cannot be read: {zarr.first_line(error)}") from error


def _manifest(store: Store, step: int) -> Manifest:
    marker = _reachable(store, lambda: store.read(step, MARKER))
    manifest = _reachable(store, lambda: store.read(step, MANIFEST))
    try:
        return decode(manifest, marker, step)
    except CheckpointError as error:
        raise _Refusal(str(error)) from error


def _wanted(
    manifest: Manifest, abstract: Mapping[str, jax.ShapeDtypeStruct], *, partial: bool
) -> dict[str, jax.ShapeDtypeStruct]:
    missing = sorted(abstract.keys() - manifest.arrays.keys())
    if missing and not partial:
        raise _Refusal(f"it holds no {missing[0]} (and lacks {len(missing) - 1} more arrays that the run needs)")
    wanted = {path: array for path, array in abstract.items() if path in manifest.arrays}
    for path, array in wanted.items():
        entry = manifest.arrays[path]
        if entry.shape != array.shape or entry.dtype != str(array.dtype):
            held, needed = f"{entry.dtype}{list(entry.shape)}", f"{array.dtype}{list(array.shape)}"
            raise _Refusal(f"{path} is {held} in it, but the run needs {needed}")
    return wanted


def _verify(manifest: Manifest, arrays: Mapping[str, jax.Array], digester: Digester) -> None:
    digests = to_hex(digester(arrays))
    wrong = sorted(path for path, digest in digests.items() if digest != manifest.arrays[path].digest)
    if wrong:
        raise _Refusal(
            f"the values of {', '.join(wrong[:4])} are not the ones that were saved: the digest differs "
            f"({len(wrong)} of {len(arrays)} arrays)"
        )


def _read(store: Store, manifest: Manifest, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Reads several arrays at a time, the largest first; the first failure ends it."""
    context, budget = zarr.context(_NUM_FILES_AT_ONCE), _Budget()
    paths = sorted(wanted, key=lambda path: (-math.prod(wanted[path].shape), path))
    with ThreadPoolExecutor(_NUM_ARRAYS_AT_ONCE, thread_name_prefix="checkpoint-read") as pool:
        reads = {
            path: pool.submit(
                _read_array, store, manifest.step, path, manifest.arrays[path], wanted[path], context, budget
            )
            for path in paths
        }
        try:
            return {path: reads[path].result() for path in wanted}
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


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
        raise _Refusal(f"{path}: {zarr.first_line(error)}") from error
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
    memory = np.empty(num_bytes + _ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    return memory[start : start + num_bytes].view(dtype).reshape(shape)
