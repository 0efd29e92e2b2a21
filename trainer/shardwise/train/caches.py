"""What generation keeps of the positions before, and attention from one position to all of them.

A layer keeps the keys and values of each head or, with latent attention, the narrow vector that all heads make theirs
of (`train/latent_decoding.py`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shardwise.train.scores import MASKED, Scores, mixed, scores_of
from shardwise.train.sinks import softmax_with

Array = jax.Array
_OF_HEADS = ("batch", "kv_heads", "position", "head_size")
_OF_ALL_HEADS = ("batch", "all_heads", "position", "narrow")


class Cache(NamedTuple):
    """What one layer has of the positions before, in the compute dtype; see `Ring` for which position is where."""

    keys: Array
    """[batch, kv_heads, position, head_size]; or of one head for all, which has no values beside them."""
    values: Array | None = None
    """[batch, kv_heads, position, value_size]; None: a key is its value too."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the names of the axes: of heads, which are split over devices, or of what all of them read."""
        return _OF_ALL_HEADS if self.values is None else _OF_HEADS

    @property
    def read(self) -> Array:
        """Return what attention makes a sum of."""
        return self.keys if self.values is None else self.values


class Ring(NamedTuple):
    """Where the newest position of each row is, in keys and values of a ring and of a few recent positions beside it.

    The slot is the same for all rows: the position before that one is a slot earlier, and the slot before the first is
    the last. So rows of different lengths end together. A loop that wrote into the ring and read it would copy it for
    every token, several times on CPUs; what it writes is small, and goes into the ring once for all.
    """

    slot: Array
    """int32 scalar: of the newest position in the ring."""
    number: Array
    """int32 scalar: where the newest position of all is among the recent ones."""
    position: Array
    """int32 [batch]: which position of its row that is; below it the row has as many others, and no more."""


_PLAINLY = Scores()


def longer(recent: Cache, new: Cache, at: Ring) -> Cache:
    """Return the recent positions with the newest one."""
    made: Cache = jax.tree.map(
        lambda old, part: jax.lax.dynamic_update_slice_in_dim(old, part, at.number, 2), recent, new
    )
    return made


def ring(
    q: Array, cache: Cache, recent: Cache, at: Ring, *, scores: Scores = _PLAINLY, sinks: Array | None = None
) -> Array:
    """Attend from one position of each row to all that the row has in both: [batch, heads, 1, what is read]."""
    size, more = cache.keys.shape[2], recent.keys.shape[2]
    age = jnp.concatenate([(at.slot - jnp.arange(size)) % size + at.number + 1, at.number - jnp.arange(more)])
    mask = (age >= 0) & (age <= at.position[:, None])
    if (reach := scores.reach(size)) is not None:
        mask &= age < reach
    found = jnp.concatenate([scores_of(q, part.keys, scores.softcap) for part in (cache, recent)], axis=-1)
    weights = softmax_with(sinks, jnp.where(mask[:, None, None], found, MASKED))
    older, newer = (
        mixed(weight, part.read, jnp.dtype(jnp.float32))
        for weight, part in ((weights[..., :size], cache), (weights[..., size:], recent))
    )
    return (older + newer).astype(q.dtype)
