"""A tree as the arrays of a checkpoint, and back: {path: array with a NamedSharding}.

Leaves that are arrays of JAX keep their sharding. Those that one process holds for itself, numpy's arrays and Python's
numbers are taken to be equal on all processes, and are saved whole. Values of 64 bits go as pairs of 32. Keys of
`jax.random` go as their data. Whatever else a tree has, such as functions, is left as it is.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwise.protocol.errors import UsageError

_NUMBERS = (bool, int, float, np.ndarray, np.generic)
_WORD_BYTES = 4
_NUMBER_KINDS = "biufV"  # V: types that numpy itself lacks, such as bfloat16
_SMALL = ("bool", "bfloat16", "float16", "float32", "int8", "int16", "int32", "uint8", "uint16", "uint32")
_OTHER = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True)
class Leaves:
    """The leaves of one tree that a checkpoint holds, by path."""

    tree: Any
    leaves: Mapping[str, Any]

    @classmethod
    def of(cls, tree: Any) -> "Leaves":
        """Find them.

        Raises:
            UsageError: there is none, two have one path, or the values of one cannot be saved.

        """
        found: dict[str, Any] = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            name = _name(path)
            if not _is_saved(leaf):
                continue
            if name in found:
                raise UsageError(f"checkpoint: two leaves have the path {name!r}; rename one")
            _refuse(name, leaf)
            found[name] = leaf
        if not found:
            raise UsageError("checkpoint: the tree has no array; expected a tree such as (parameters, optimizer state)")
        return cls(tree, found)

    def arrays(self) -> dict[str, jax.Array]:
        """Return what is to be saved; nothing is copied that a device holds already."""
        return {name: _laid(leaf) for name, leaf in self.leaves.items()}

    def checksums(self) -> dict[str, int]:
        """Return the CRC-32 of each leaf of which every process has a copy of its own: they should be equal."""
        own = {name: values for name, leaf in self.leaves.items() if (values := _own(leaf)) is not None}
        return {name: zlib.crc32(values.tobytes()) for name, values in own.items()}

    def are_apart(self) -> bool:
        """Return whether this process, one of several, holds all of the arrays of JAX for itself."""
        arrays = [leaf for leaf in self.leaves.values() if isinstance(leaf, jax.Array)]
        return jax.process_count() > 1 and bool(arrays) and all(array.is_fully_addressable for array in arrays)

    def abstract(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes, dtypes and shardings of the same."""
        return {name: _abstract(leaf) for name, leaf in self.leaves.items()}

    def with_values(self, arrays: Mapping[str, jax.Array]) -> Any:
        """Return the tree with these values in the place of its own."""
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: _like(leaf, arrays[_name(path)]) if _is_saved(leaf) else leaf, self.tree
        )


def _name(path: tuple[Any, ...]) -> str:
    """Return a leaf's path as a checkpoint may hold it; a character that it may not is an underscore there."""
    parts = [_OTHER.sub("_", jax.tree_util.keystr((key,), simple=True)) or "_" for key in path]
    return ".".join(parts) or "value"


def _is_saved(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct, *_NUMBERS))


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _refuse(name: str, leaf: Any) -> None:
    """Raise UsageError for a leaf that no checkpoint can hold."""
    if isinstance(leaf, int) and not -(2**63) <= leaf < 2**63:
        raise UsageError(f"checkpoint: {name} is {leaf}; expected a whole number of at most 64 bits")
    if 0 in np.shape(leaf):
        raise UsageError(f"checkpoint: {name} has the shape {np.shape(leaf)}; expected at least one value")
    own = isinstance(leaf, _NUMBERS)
    if not own and _is_key(leaf):
        return
    dtype = np.asarray(leaf).dtype if own else leaf.dtype
    if own and dtype.kind not in _NUMBER_KINDS:
        raise UsageError(f"checkpoint: {name} is of {dtype}; expected numbers")
    if not own and dtype.itemsize > _WORD_BYTES:
        raise UsageError(f"checkpoint: {name} is of {dtype}; expected arrays of JAX of at most 32 bits a value")
    if dtype.itemsize <= _WORD_BYTES and str(dtype) not in _SMALL:
        raise UsageError(f"checkpoint: {name} is of {dtype}; expected one of {', '.join(_SMALL)}")


def _laid(leaf: Any) -> jax.Array:
    """Return the leaf as an array that all processes hold together."""
    own = _own(leaf)
    if own is not None:
        return _whole(own)
    array = _data(leaf)
    if array.is_fully_replicated and len(array.sharding.addressable_devices) == 1:
        # JAX 0.10.2: what `device_put` has laid so out of a local array cannot tell its shards.
        return jax.make_array_from_single_device_arrays(array.shape, array.sharding, [_local(array)])
    return array


def _own(leaf: Any) -> np.ndarray | None:
    """Return the values of a leaf that this process holds for itself; None if all processes hold it together."""
    if isinstance(leaf, _NUMBERS):
        return _words(leaf)
    array = _data(leaf)
    return None if _is_shared(array.sharding) else np.asarray(array)


def _data(leaf: jax.Array) -> jax.Array:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, _NUMBERS):
        words = _words(leaf)
        return jax.ShapeDtypeStruct(words.shape, words.dtype, sharding=_everywhere())
    sharding = leaf.sharding if _is_shared(leaf.sharding) else _everywhere()
    of = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    return jax.ShapeDtypeStruct(of.shape, of.dtype, sharding=sharding)


def _like(leaf: Any, array: jax.Array) -> Any:
    """Return the values of a restored array in the form of the leaf."""
    if isinstance(leaf, _NUMBERS):
        words = np.asarray(array.addressable_data(0))
        kind = np.asarray(leaf).dtype
        value = words.view(kind)[..., 0] if kind.itemsize > _WORD_BYTES else words
        return value.copy() if isinstance(leaf, np.ndarray) else type(leaf)(value[()])
    together = leaf.sharding is None or _is_shared(leaf.sharding)
    # What `jnp.zeros` has made is bound to no device, and may go into a program beside arrays on a mesh.
    loose = isinstance(leaf, jax.Array) and not leaf.committed
    if not together:
        array = jnp.asarray(np.asarray(_local(array))) if loose else _local(array)
    if _is_key(leaf):
        array = jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf))
    return array if together or loose else jax.device_put(array, leaf.sharding)


def _local(array: jax.Array) -> jax.Array:
    return array.addressable_data(0)


def _words(leaf: Any) -> np.ndarray:
    """Return a number, or an array of numpy, with values of at most 32 bits: those of 64 as a last axis of two."""
    value = np.asarray(leaf)
    return value[..., None].view(np.uint32) if value.dtype.itemsize > _WORD_BYTES else value


def _is_shared(sharding: jax.sharding.Sharding | None) -> bool:
    """Return whether a sharding is one of all processes, and not of what one of several holds for itself."""
    return isinstance(sharding, NamedSharding) and (jax.process_count() == 1 or not sharding.is_fully_addressable)


def _everywhere() -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()), ("device",)), PartitionSpec())


def _whole(value: np.ndarray) -> jax.Array:
    return jax.make_array_from_callback(value.shape, _everywhere(), lambda index: value[index])
