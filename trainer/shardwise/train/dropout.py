"""Dropout whose masks depend on the sequence, not on the mesh or the microbatch that it falls into.

A mask's key folds (seed, step, the sequence's row in the global batch, layer, place).
"""

from dataclasses import dataclass, field
from typing import Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p
from numpy.typing import NDArray

from shardwise.train.zigzag import zigzag

Array = jax.Array
Place = Literal["embedding", "attention", "mlp"]
_PLACES: tuple[Place, ...] = ("embedding", "attention", "mlp")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dropout:
    """The rates, and one key per sequence ([batch]). Rates are part of the program, keys are its inputs."""

    keys: Array | None
    embed: float = field(default=0.0, metadata={"static": True})
    residual: float = field(default=0.0, metadata={"static": True})
    context: int = field(default=1, metadata={"static": True})
    """Positions are in the order of `zigzag` for so many devices."""

    @classmethod
    def none(cls) -> Self:
        """Return no dropout: for evaluation, generation, and training at rate 0."""
        return cls(None)

    @classmethod
    def of(cls, *, seed: int, step: Array, rows: Array, embed: float, residual: float, context: int = 1) -> Self:
        """Return the dropout of one step for these rows (int32 [batch]) of the global batch."""
        if embed == residual == 0:
            return cls.none()
        key = jax.random.fold_in(jax.random.key(seed), step)
        return cls(jax.vmap(lambda row: jax.random.fold_in(key, row))(rows), embed, residual, context)

    def drop(self, x: Array, layer: Array, place: Place) -> Array:
        """Drop entries of [batch, position, embed] and scale up the others."""
        rate = self.embed if place == "embedding" else self.residual
        if self.keys is None or rate == 0:
            return x
        number = layer * len(_PLACES) + _PLACES.index(place)  # every layer and place draws its own mask
        keys: Array = jax.vmap(lambda key: jax.random.fold_in(key, number))(self.keys)
        if self.context > 1:
            kept = _kept_at(zigzag(np.arange(x.shape[1], dtype=np.uint64), self.context), keys, 1 - rate, x.shape[2])
        else:
            kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate, x.shape[1:]))(keys)
        # In float32: in bfloat16 the divisor 0.9 is 0.8984, and all that is kept would be 0.17 % too large.
        scaled = (x.astype(jnp.float32) / (1 - rate)).astype(x.dtype)
        return jnp.where(kept, scaled, 0)


def _kept_at(positions: NDArray[np.uint64], keys: Array, probability: float, width: int) -> Array:
    """Draw `bernoulli(key, probability, [position, embed])` of each key at these positions: [batch, position, embed].

    An entry is a function of the key and of its number alone (`jax_threefry_partitionable`). To draw all and bring them
    into order would be work and memory for whole sequences on every device; numbers in order are each device's own.
    """
    shape = (keys.shape[0], len(positions), width)
    numbers = (jnp.broadcast_to(word, shape) for word in entry_numbers(positions, width))
    words = jnp.moveaxis(jax.random.key_data(keys), 1, 0)[:, :, None, None]
    left, right = threefry2x32_p.bind(*(jnp.broadcast_to(word, shape) for word in words), *numbers)
    # As jax.random.uniform makes them floats: the mantissa of a number from 1 to 2.
    bits = (left ^ right) >> 9 | np.float32(1).view(np.uint32)
    kept: Array = jax.lax.bitcast_convert_type(bits, np.float32) - 1 < np.float32(probability)
    return kept


def entry_numbers(positions: NDArray[np.uint64], width: int) -> tuple[Array, Array]:
    """Return the number of each entry of [position, embed] as two words of 32 bits, the high one first."""
    starts = positions[:, None] * np.uint64(width)
    low = jnp.asarray(starts.astype(np.uint32)) + jnp.arange(width, dtype=np.uint32)
    carried = (low < starts.astype(np.uint32)).astype(np.uint32)
    return jnp.asarray((starts >> np.uint64(32)).astype(np.uint32)) + carried, low
