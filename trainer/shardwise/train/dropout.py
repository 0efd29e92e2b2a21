"""Dropout whose masks depend on the sequence, not on the mesh or the microbatch that it falls into.

A mask's key folds (seed, step, the sequence's row in the global batch, layer, place).
"""

from dataclasses import dataclass, field
from typing import Literal, Self

import jax
import jax.numpy as jnp

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
        kept: Array = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate, x.shape[1:]))(keys)
        kept = zigzag(kept, self.context, axis=1)
        return jnp.where(kept, x / (1 - rate), 0).astype(x.dtype)
