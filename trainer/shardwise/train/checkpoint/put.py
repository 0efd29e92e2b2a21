"""Writes the staged files of a checkpoint's arrays, so many bytes at a time; all are durable when it returns.

Called by the writer in its background thread. It commits nothing: without a marker these files are no checkpoint.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

import jax
import tensorstore as ts

from shardwise.train.checkpoint import layout, zarr
from shardwise.train.checkpoint.manifest import array_directory
from shardwise.train.checkpoint.staging import Part
from shardwise.train.checkpoint.store import Store

_NUM_FILES_AT_ONCE = 16
_MAX_BYTES_IN_FLIGHT = 256 << 20


def put(
    store: Store,
    step: int,
    abstract: Mapping[str, jax.ShapeDtypeStruct],
    layouts: Mapping[str, layout.Layout],
    parts: deque[Part],
) -> None:
    """Writes and empties `parts`. Raises what TensorStore raises, after everything on its way has ended."""
    context = zarr.context(_NUM_FILES_AT_ONCE)
    opening = {
        path: ts.open(_spec(store, step, path, array, layouts[path]), create=True, open=True, context=context)
        for path, array in abstract.items()
    }
    stores = {path: future.result() for path, future in opening.items()}
    in_flight: deque[tuple[ts.Future[None], int]] = deque()
    num_bytes = 0
    try:
        while parts or in_flight:
            while in_flight and (not parts or num_bytes > _MAX_BYTES_IN_FLIGHT):
                commit, done_bytes = in_flight.popleft()
                commit.result()
                num_bytes -= done_bytes
            if parts:
                in_flight.append(_start_write(parts, stores))
                num_bytes += in_flight[-1][1]
    finally:
        for commit, _ in in_flight:  # after a failure: what is still being written would come back after removal
            commit.exception()


def _spec(store: Store, step: int, path: str, array: jax.ShapeDtypeStruct, cut: layout.Layout) -> dict[str, Any]:
    kvstore = store.spec(step, array_directory(path))
    return zarr.array_spec(kvstore, array.shape, array.dtype, cut.file_shape, cut.chunk_shape)


def _start_write(parts: deque[Part], stores: Mapping[str, ts.TensorStore]) -> tuple[ts.Future[None], int]:
    """Hands the next file to TensorStore, which then holds the only reference to its values."""
    part = parts.popleft()
    stored = stores[part.path]
    values = part.bits.view(stored.dtype.numpy_dtype)
    write = stored[part.box.slices].write(values, can_reference_source_data_indefinitely=True)
    return write.commit, part.bits.nbytes
