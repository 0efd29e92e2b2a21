"""The ways to save a tree that are compared: the disk itself, a bucket's client, TensorStore, Orbax, and Shardwise.

Each has `save(step, tree)`, which returns when training could go on, as a `Saving`, and `restore(step, like)`.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import jax
import numpy as np
import tensorstore as ts
from benchmarks.workers.tree import Abstract, Arrays

REQUESTS_AT_ONCE = 16


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

    def __init__(self, root: str) -> None:
        """Write below `root`."""
        self._root = Path(root)

    def save(self, step: int, tree: Arrays) -> Saving:
        """Copy, then write in a thread."""
        copies = _copies(tree)

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


class Client:
    """The limit in a bucket: an object for each shard, by a client in Rust; no metadata, no checksum, no arrays."""

    def __init__(self, root: str) -> None:
        """Write below `root`, with the address and the key that the environment has."""
        import obstore  # noqa: PLC0415  only the peers' environment has it

        self._obstore = obstore
        self._store = obstore.store.from_url(root, client_options={"allow_http": True})

    def save(self, step: int, tree: Arrays) -> Saving:
        """Copy, then put all in a thread."""
        objects = {f"{step}/{number}": copy.data.cast("B") for number, copy in enumerate(_copies(tree))}

        def put(name: str) -> None:
            self._obstore.put(self._store, name, objects[name], use_multipart=False)

        def write() -> None:
            with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
                list(pool.map(put, objects))

        return _in_a_thread(write)

    def restore(self, step: int, like: Abstract) -> None:  # noqa: ARG002
        """Get all into memory, whatever the mesh."""
        names = [found["path"] for page in self._obstore.list(self._store, f"{step}/") for found in page]
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            list(pool.map(lambda name: self._obstore.get(self._store, name).bytes(), names))


class TensorStore:
    """TensorStore as its manual shows it: zarr3, a chunk a shard, crc32c; nothing of ours."""

    def __init__(self, root: str) -> None:
        """Write below `root`."""
        url = urlsplit(root)
        self._base: dict[str, Any] = {"driver": "file", "path": root}
        if url.scheme:
            self._base = {
                "driver": url.scheme,
                "bucket": url.netloc,
                "path": url.path.strip("/"),
                "endpoint": os.environ["AWS_ENDPOINT_URL"],
                "aws_credentials": {"type": "environment"},
            }

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
            "kvstore": {**self._base, "path": f"{self._base['path']}/{step}/{path}/"},
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

    def __init__(self, root: str) -> None:
        """Write below `root`."""
        import orbax.checkpoint as ocp  # noqa: PLC0415  only this peer's environment has it

        self._ocp = ocp
        options = ocp.CheckpointManagerOptions(enable_async_checkpointing=True, max_to_keep=2)
        self._manager = ocp.CheckpointManager(Path(root), options=options)

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

    def __init__(self, root: str) -> None:
        """Write below `root`."""
        from shardwise.job.spec import Keep  # noqa: PLC0415  only Shardwise's environment has it
        from shardwise.train.checkpoint import CheckpointWriter  # noqa: PLC0415

        self._root = root
        self._writer = CheckpointWriter(self._root, keep=Keep(last=2), run="bench", attempt=0, fence=nullcontext)
        self._digester: Any = None

    def prepare(self, like: Abstract) -> None:
        """Compile the digest and make what lists a bucket, which the trainer does beside other work at its start."""
        from shardwise.train.checkpoint import prepare_bucket  # noqa: PLC0415  only Shardwise's environment has it
        from shardwise.train.digest import Digester  # noqa: PLC0415

        prepare_bucket(self._root)
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


SAVERS: dict[str, Callable[[str], Saver]] = {
    "raw": Raw,
    "client": Client,
    "TensorStore": TensorStore,
    "Orbax": Orbax,
    "Shardwise": Shardwise,
}


def _copies(tree: Arrays) -> list[np.ndarray[Any, Any]]:
    """A copy of each shard, once."""
    shards = (shard for array in tree.values() for shard in array.addressable_shards if shard.replica_id == 0)
    return [np.array(shard.data) for shard in shards]


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
