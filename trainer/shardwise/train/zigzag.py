"""The order of positions where `context` splits sequences: a device has a chunk from the front and one from the back.

A sequence is cut into twice as many chunks as there are devices, and device i holds chunks i and 2 devices - 1 - i. A
causal token sees all before it, so a device with an early chunk has a late one too, and all have the same number of
pairs to compute (Llama Team, "The Llama 3 Herd of Models", 2024). The host puts batches into this order; whatever
needs a token's place in its sequence computes it from here. Over one device it is the sequence's own order.
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")


def zigzag(x: T, ways: int, *, axis: int = 0) -> T:
    """Bring an axis of positions of a host's or a device's array into the order of so many devices.

    Twice as many must divide it.
    """
    if ways == 1:
        return x
    array: Any = x
    library: Any = np if isinstance(x, np.ndarray) else jnp
    chunks = _cut(array, axis, 2 * ways)
    front, back = library.split(chunks, 2, axis=axis)
    moved: T = library.stack([front, library.flip(back, axis)], axis=axis + 1).reshape(array.shape)
    return moved


def straight(x: jax.Array, ways: int, *, axis: int = 0) -> jax.Array:
    """Bring an axis of positions back into the sequence's order: the inverse of `zigzag`."""
    if ways == 1:
        return x
    front, back = jnp.moveaxis(_cut(x, axis, ways, 2), axis + 1, 0)
    return jnp.concatenate([front, jnp.flip(back, axis)], axis=axis).reshape(x.shape)


def _cut(x: Any, axis: int, *parts: int) -> Any:
    """Cut an axis into so many equal parts."""
    return x.reshape(*x.shape[:axis], *parts, -1, *x.shape[axis + 1 :])
