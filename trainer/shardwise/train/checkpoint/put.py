"""Write the staged files of a checkpoint's arrays, so many bytes at a time; all are durable on return.

A file that a passing error of the storage has stopped is written again, as a whole. Runs in the writer's background
thread. It commits nothing: without a marker these files are no checkpoint.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import jax
import tensorstore as ts

from shardwise.protocol.storage import may_pass, with_retries
from shardwise.train.checkpoint import layout, zarr
from shardwise.train.checkpoint.manifest import array_directory
from shardwise.train.checkpoint.staging import Part
from shardwise.train.checkpoint.store import Store

_Result = TypeVar("_Result")

_NUM_FILES_AT_ONCE = 16
_MAX_BYTES_IN_FLIGHT = 256 << 20


def put(
    store: Store,
    step: int,
    abstract: Mapping[str, jax.ShapeDtypeStruct],
    layouts: Mapping[str, layout.Layout],
    parts: deque[Part],
    *,
    describes: bool = True,
    moved: Callable[[], None] = lambda: None,
) -> None:
    """Write and empty `parts`. Raises what TensorStore raises, after every write on its way has ended.

    The one process that `describes` the arrays writes their metadata: a bucket takes about one write of an object in a
    second. `moved` is called after each file.
    """
    context = zarr.context(_NUM_FILES_AT_ONCE)
    opens: dict[str, Callable[[], ts.Future[ts.TensorStore]]] = {
        path: partial(
            ts.open,
            _spec(store, step, path, array, layouts[path]),
            open=True,
            create=describes,
            assume_metadata=not describes,
            context=context,
        )
        for path, array in abstract.items()
    }
    opening = {path: start() for path, start in opens.items()}
    stores = {path: _result(future, opens[path]) for path, future in opening.items()}
    in_flight: deque[tuple[Part, ts.Future[None]]] = deque()
    num_bytes = 0
    try:
        while parts or in_flight:
            while in_flight and (not parts or num_bytes > _MAX_BYTES_IN_FLIGHT):
                part, commit = in_flight.popleft()
                _result(commit, partial(_start_write, part, stores))
                num_bytes -= part.bits.nbytes
                moved()
            if parts:
                part = parts.popleft()
                in_flight.append((part, _start_write(part, stores)))
                num_bytes += part.bits.nbytes
    finally:
        for _, commit in in_flight:  # after a failure: what is still being written would come back after removal
            commit.exception()


def _spec(store: Store, step: int, path: str, array: jax.ShapeDtypeStruct, cut: layout.Layout) -> dict[str, Any]:
    kvstore = store.spec(step, array_directory(path))
    return zarr.array_spec(kvstore, array.shape, array.dtype, cut.file_shape, cut.chunk_shape)


def _start_write(part: Part, stores: Mapping[str, ts.TensorStore]) -> ts.Future[None]:
    """Hand a file to TensorStore; it is durable when the result is there."""
    stored = stores[part.path]
    values = part.bits.view(stored.dtype.numpy_dtype)
    return stored[part.box.slices].write(values, can_reference_source_data_indefinitely=True).commit


def _result(first: ts.Future[_Result], again: Callable[[], ts.Future[_Result]]) -> _Result:
    """Return the result of a write, or of what `again` starts in its place after a passing error.

    The write may have failed long ago, with all the others, and be possible by now: so it is tried again before any
    wait.
    """
    try:
        return first.result()
    except (ValueError, OSError) as error:
        if not may_pass(error):
            raise
    return with_retries(lambda: again().result())
