"""The ways to save a tree that are compared: the disk itself, plain TensorStore, Orbax, and Shardwise.

Each has `save(step, tree)`, which returns when training could go on, as a `Saving`, and `restore(step, like)`.
"""

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
import tensorstore as ts
from benchmarks.workers.tree import Abstract, Arrays


class Saving(NamedTuple):
    """A save on its way."""

    wait: Callable[[], object]
    """Returns when everything is on disk and committed."""


class Saver(Protocol):
    """One way to save."""

    def save(self, step: int, tree: Arrays) -> Saving: ...  # noqa: D102
    def restore(self, step: int, like: Abstract) -> Arrays | None: ...  # noqa: D102


class Raw:
    """The limit: a copy in host memory, then one plain file and fsync; the same file read back."""

    def __init__(self, root: Path) -> None:
        """Write below `root`."""
        self._root = root

    def save(self, step: int, tree: Arrays) -> Saving:
        """Copy, then write in a thread."""
        copies = [
            np.array(shard.data)
            for array in tree.values()
            for shard in array.addressable_shards
            if shard.replica_id == 0
        ]

        def write() -> None:
            self._root.mkdir(parents=True, exist_ok=True)
            with (self._root / str(step)).open("wb", buffering=0) as file:
                for copy in copies:
                    file.write(copy.data.cast("B"))
                os.fsync(file.fileno())

        return _in_a_thread(write)

    def restore(self, step: int, like: Abstract) -> None:  # noqa: ARG002
        """Read the file into memory, whatever the mesh."""
        path = self._root / str(step)
        content = np.empty(path.stat().st_size, np.uint8).data
        with path.open("rb", buffering=0) as file:
            at = 0
            while read := file.readinto(content[at:]):
                at += read


class TensorStore:
    """TensorStore as its manual shows it: zarr3, a chunk a shard, crc32c; nothing of ours."""

    def __init__(self, root: Path) -> None:
        """Write below `root`."""
        self._root = root

    def save(self, step: int, tree: Arrays) -> Saving:
        """Copy, then write every shard at once in a thread."""
        copies = {
            path: [(shard.index, np.array(shard.data)) for shard in array.addressable_shards if shard.replica_id == 0]
            for path, array in tree.items()
        }

        def write() -> None:
            context = _context()
            stores = {
                path: ts.open(self._spec(step, path, array), create=True, context=context)
                for path, array in tree.items()
            }
            writes = [
                stores[path].result()[index].write(copy, can_reference_source_data_indefinitely=True).commit
                for path, parts in copies.items()
                for index, copy in parts
            ]
            for one in writes:
                one.result()

        return _in_a_thread(write)

    def restore(self, step: int, like: Abstract) -> Arrays:
        """Read each shard, then put it on its devices."""
        context = _context()
        stores = {path: ts.open(self._spec(step, path), open=True, context=context) for path in like}
        reads = {path: _shard_reads(stores[path].result(), array) for path, array in like.items()}
        return {path: _array(like[path], parts) for path, parts in reads.items()}

    def _spec(self, step: int, path: str, array: jax.Array | None = None) -> dict[str, Any]:
        spec: dict[str, Any] = {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": f"{self._root}/{step}/{path}/"},
        }
        if array is None:
            return spec
        chunk = list(array.sharding.shard_shape(array.shape))
        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
        metadata = {"shape": list(array.shape), "data_type": str(array.dtype), "codecs": codecs, "chunk_grid": grid}
        return spec | {"metadata": metadata, "store_data_equal_to_fill_value": True}


class Orbax:
    """Orbax's CheckpointManager with its defaults, asynchronous."""

    def __init__(self, root: Path) -> None:
        """Write below `root`."""
        import orbax.checkpoint as ocp  # noqa: PLC0415  only this peer's environment has it

        self._ocp = ocp
        options = ocp.CheckpointManagerOptions(enable_async_checkpointing=True, max_to_keep=2)
        self._manager = ocp.CheckpointManager(root, options=options)

    def save(self, step: int, tree: Arrays) -> Saving:
        """Its own save."""
        self._manager.save(step, args=self._ocp.args.StandardSave(tree))
        return Saving(self._manager.wait_until_finished)

    def restore(self, step: int, like: Abstract) -> Arrays:
        """Its own restore."""
        restored: Arrays = self._manager.restore(step, args=self._ocp.args.StandardRestore(dict(like)))
        return restored


class Shardwise:
    """The trainer's own writer and reader, called as the loop and the start call them."""

    def __init__(self, root: Path) -> None:
        """Write below `root`."""
        from shardwise.job.spec import Keep  # noqa: PLC0415  only Shardwise's environment has it
        from shardwise.train.checkpoint import CheckpointWriter  # noqa: PLC0415

        self._root = str(root)
        self._writer = CheckpointWriter(self._root, keep=Keep(last=2), run="bench", incarnation=0, fence=nullcontext)
        self._digester: Any = None

    def prepare(self, like: Abstract) -> None:
        """Compile the digest, which the trainer does beside other work at its start."""
        from shardwise.train.digest import Digester  # noqa: PLC0415

        self._digester = Digester(like)

    def save(self, step: int, tree: Arrays) -> Saving:
        """Copy; the digest and the files are made while the loop goes on."""
        self._writer.save(step, tree, digester=self._digester, identity={})
        return Saving(self._writer.wait)

    def restore(self, step: int, like: Abstract) -> Arrays:
        """Read, check every chunk and every array's digest."""
        from shardwise.train.checkpoint import restore  # noqa: PLC0415

        restored = restore(self._root, like, step=step, digester=self._digester, report=lambda *_: None)
        assert restored is not None
        return dict(restored.arrays)


SAVERS: dict[str, Callable[[Path], Saver]] = {
    "raw": Raw,
    "TensorStore": TensorStore,
    "Orbax": Orbax,
    "Shardwise": Shardwise,
}


def _in_a_thread(write: Callable[[], None]) -> Saving:
    thread = threading.Thread(target=write)
    thread.start()
    return Saving(thread.join)


def _context() -> ts.Context:
    return ts.Context({"file_io_concurrency": {"limit": 16}, "data_copy_concurrency": {"limit": 8}})


def _shard_reads(store: ts.TensorStore, array: jax.ShapeDtypeStruct) -> list[tuple[jax.Device, Any]]:
    """A read for every device, one a distinct shard."""
    assert array.sharding is not None
    reads: dict[str, Any] = {}
    placed = []
    for device, index in array.sharding.addressable_devices_indices_map(array.shape).items():
        if str(index) not in reads:
            reads[str(index)] = store[index].read()
        placed.append((device, reads[str(index)]))
    return placed


def _array(like: jax.ShapeDtypeStruct, parts: list[tuple[jax.Device, Any]]) -> jax.Array:
    assert like.sharding is not None
    shards = [jax.device_put(read.result(), device) for device, read in parts]
    return jax.make_array_from_single_device_arrays(like.shape, like.sharding, shards)
