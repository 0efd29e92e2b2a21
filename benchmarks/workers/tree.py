"""A GPT-like training state to save: parameters and two moments, float32, sharded over data and tensor."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

P = PartitionSpec
Abstract = Mapping[str, jax.ShapeDtypeStruct]
Arrays = dict[str, jax.Array]
NUM_RANDOM = 1 << 22


@dataclass(frozen=True, kw_only=True)
class TreeSize:
    """The sizes that matter for bytes."""

    embed: int
    layers: int
    vocab: int


TREES = {
    "full": TreeSize(embed=1024, layers=8, vocab=25600),  # 1.43 GiB
    "soak": TreeSize(embed=384, layers=8, vocab=8192),  # 200 MB
    "toy": TreeSize(embed=64, layers=2, vocab=512),
}


def abstract(size: TreeSize, data: int, tensor: int) -> Abstract:
    """The tree's shapes and shardings on a mesh of all devices."""
    mesh = Mesh(np.array(jax.devices()).reshape(data, tensor), ("data", "tensor"))
    E, L, V = size.embed, size.layers, size.vocab
    weights = {
        "tokens": ((V, E), P("tensor", "data")),
        "positions": ((1024, E), P(None, "data")),
        "qkv": ((L, E, 3 * E), P(None, "data", "tensor")),
        "out": ((L, E, E), P(None, "tensor", "data")),
        "up": ((L, E, 4 * E), P(None, "data", "tensor")),
        "down": ((L, 4 * E, E), P(None, "tensor", "data")),
        **{name: ((L, E), P(None, "data")) for name in ("gain1", "shift1", "gain2", "shift2")},
    }
    return {
        f"{part}.{name}": jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for part in ("params", "optimizer.mu", "optimizer.nu")
        for name, (shape, spec) in weights.items()
    }


def build(like: Abstract) -> Arrays:
    """The tree with its values, on the devices."""
    return {path: jax.device_put(values, like[path].sharding) for path, values in values_of(like)}


def values_of(like: Abstract) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Normal numbers, which no compression shrinks much; made the same way again to compare with what was restored."""
    numbers = np.random.default_rng(0).standard_normal(NUM_RANDOM, np.float32)
    for place, (path, array) in enumerate(like.items()):
        yield path, np.resize(np.roll(numbers, 7919 * place), array.shape)


def num_bytes(like: Abstract) -> int:
    """Bytes of the whole tree."""
    return sum(int(np.prod(array.shape)) * array.dtype.itemsize for array in like.values())
