"""The order of positions where `context` splits sequences: a device has a chunk from the front and one from the back.

A sequence is cut into twice as many chunks as there are devices, and device i holds chunks i and 2 devices - 1 - i. A
causal token sees all before it, so a device with an early chunk has a late one too, and all have the same number of
pairs to compute (Llama Team, "The Llama 3 Herd of Models", 2024). The host puts batches into this order; whatever
needs a token's place in its sequence computes it from here. Over one device it is the sequence's own order.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

Some = TypeVar("Some", NDArray[np.int32], NDArray[np.float32], jax.Array)


def zigzag(x: Some, ways: int, *, axis: int = 0) -> Some:
    """Bring an axis of positions into the order of so many devices; 2 x ways must divide it."""
    if ways == 1:
        return x
    chunks = _cut(x, axis, 2 * ways)
    front, back = _halves(chunks, axis, ways)
    pairs = _library(x).stack([front, _library(x).flip(back, axis)], axis=axis + 1)
    return pairs.reshape(x.shape)


def straight(x: jax.Array, ways: int, *, axis: int = 0) -> jax.Array:
    """Bring an axis of positions back into the sequence's order: the inverse of `zigzag`."""
    if ways == 1:
        return x
    front, back = _halves(jnp.moveaxis(_cut(x, axis, ways, 2), axis + 1, 0), 0, 1)
    return jnp.concatenate([front[0], jnp.flip(back[0], axis)], axis=axis).reshape(x.shape)


def _cut(x: Some, axis: int, *parts: int) -> Some:
    return x.reshape(*x.shape[:axis], *parts, -1, *x.shape[axis + 1 :])


def _halves(x: Some, axis: int, at: int) -> tuple[Some, Some]:
    before = (slice(None),) * axis
    return x[(*before, slice(at))], x[(*before, slice(at, None))]


def _library(x: object):  # type: ignore[no-untyped-def]  # noqa: ANN202  a module
    return np if isinstance(x, np.ndarray) else jnp
