"""Scores of queries and keys: what is done to them, which of them count, and the softmax over those that do.

Scores are float32 from the product to the softmax, whatever the inputs are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shardwise.train.products import product
from shardwise.train.sinks import softmax_with

Array = jax.Array
MASKED = -1e30  # not -inf: a fully masked block would make exp(-inf - -inf)


class Scores(NamedTuple):
    """What becomes of the scores before the softmax."""

    window: int | None = None
    """A query sees itself and so many less one before it; None: all of them."""
    in_window: Array | None = None
    """bool: whether this layer has the window; None: it has."""
    softcap: float | None = None
    """They are bent into this range by tanh; None: they are not. cuDNN does not."""

    def reach(self, num_keys: int) -> Array | int | None:
        """Return the window of this layer, which may be all keys; None: no layer has one."""
        if self.window is None or self.in_window is None:
            return self.window
        return jnp.where(self.in_window, self.window, num_keys)

    def windowed(self, attended: Callable[[int | None], Callable[..., Array]], *operands: Any) -> Array:
        """Call what a kernel makes of the window, or of none in a layer without it."""
        if self.window is None or self.in_window is None:
            return attended(self.window)(*operands)
        result: Array = jax.lax.cond(self.in_window, attended(self.window), attended(None), *operands)
        return result


def softmax_weighted(
    q: Array, k: Array, v: Array, mask: Array, softcap: float | None, sinks: Array | None = None
) -> Array:
    """Compute all scores at once, under a mask [1 or batch, 1, query, key]."""
    return weighted_by(scores_of(q, k, softcap), mask, v, sinks)


def weighted_by(scores: Array, mask: Array, v: Array, sinks: Array | None = None) -> Array:
    """Return the values by the softmax of scores [batch, heads, query, key], of those under the mask."""
    weights = softmax_with(sinks, jnp.where(mask, scores, MASKED))
    return mixed(weights, v, v.dtype)


def scores_of(q: Array, k: Array, softcap: float | None) -> Array:
    """Return float32 [batch, heads, query, key]."""
    scores = _over_heads(q, k, 3, jnp.dtype(jnp.float32))
    return scores if softcap is None else softcap * jnp.tanh(scores / softcap)


def mixed(weights: Array, v: Array, dtype: jnp.dtype) -> Array:
    """Sum the values by weights of [batch, heads, query, key]: [batch, heads, query, head_size] in this dtype."""
    return _over_heads(weights.astype(v.dtype), v, 2, dtype)


def _over_heads(x: Array, other: Array, axis: int, dtype: jnp.dtype) -> Array:
    """Contract the last axis of [batch, heads, query, ...] with an axis of [batch, kv_heads, ...], head by head."""
    batch, heads, *rest = x.shape
    kv_heads = other.shape[1]
    if kv_heads == heads:
        return product(x, other, (((3,), (axis,)), ((0, 1), (0, 1))), dtype)
    # Grouped, so that no head of keys or values is copied.
    grouped = x.reshape(batch, kv_heads, heads // kv_heads, *rest)
    out = product(grouped, other, (((4,), (axis,)), ((0, 1), (0, 1))), dtype)
    return out.reshape(batch, heads, *out.shape[3:])


def mask_of(
    num_queries: int,
    num_keys: int,
    query_start: Array | int,
    key_start: Array | int,
    segments: Array | None,
    window: Array | int | None = None,
) -> Array:
    """Return which keys a query sees: [1 or batch, 1, query, key]."""
    at, to = query_start + jnp.arange(num_queries), key_start + jnp.arange(num_keys)
    causal = visible(at, to, window)
    if segments is None:
        return causal
    of_query = jax.lax.dynamic_slice_in_dim(segments, query_start, num_queries, 1)
    of_key = jax.lax.dynamic_slice_in_dim(segments, key_start, num_keys, 1)
    return causal & (of_query[:, None, :, None] == of_key[:, None, None, :])


def visible(at: Array, to: Array, window: Array | int | None) -> Array:
    """Return which keys at positions `to` queries at positions `at` see: [1, 1, query, key]."""
    seen = (at[:, None] >= to[None, :])[None, None]
    if window is not None:
        seen &= (at[:, None] - to[None, :] < window)[None, None]
    return seen


def step_of_softmax(
    state: tuple[Array, Array, Array], q: Array, k: Array, v: Array, mask: Array, softcap: float | None
) -> tuple[Array, Array, Array]:
    """Add a block of keys to the running maximum, sum and output of a block of queries."""
    top, total, out = state
    scores = jnp.where(mask, scores_of(q, k, softcap), MASKED)
    new_top = jnp.maximum(top, scores.max(-1, keepdims=True))
    weights, shrink = jnp.exp(scores - new_top), jnp.exp(top - new_top)
    out = out * shrink + mixed(weights, v, jnp.dtype(jnp.float32))
    return new_top, total * shrink + weights.sum(-1, keepdims=True), out
