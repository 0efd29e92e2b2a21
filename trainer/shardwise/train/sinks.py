"""Attention sinks: a learned logit for each head of queries that joins every softmax and stands for no value.

A query that finds nothing may so attend to nothing. Joined to what queries have found among their keys,

    out' = out x exp(l - l'),    l' = log(exp(l) + exp(sink)),

where l is the logarithm of the sum over the keys. Since out' is again a sum of values by exp(score - l'), backward
passes that are given out' and l' in the place of out and l compute the gradients of queries, keys and values as they
are. Sources: Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (2023); OpenAI, "gpt-oss-120b &
gpt-oss-20b Model Card" (2025).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

Array = jax.Array


def softmax_with(sinks: Array | None, scores: Array) -> Array:
    """Return the softmax of float32 scores [batch, heads, query, key] over the keys, and the sinks [heads] if any."""
    if sinks is None:
        return jax.nn.softmax(scores, axis=-1)
    log_sum = logsumexp(scores, axis=-1, keepdims=True)
    weights: Array = jnp.exp(scores - jnp.logaddexp(log_sum, _beside(sinks, scores)))
    return weights


def joined(sinks: Array | None, out: Array, log_sum: Array) -> tuple[Array, Array]:
    """Add sinks, float32 [heads], to what queries have found among all keys.

    Args:
        sinks: of these queries' heads; None: there are none, and both stay as they are.
        out: float32 [batch, heads, ..., head_size].
        log_sum: float32 [batch, heads, ..., 1], the logarithm of the sum of the exponentials of the scores.

    """
    if sinks is None:
        return out, log_sum
    with_sinks = jnp.logaddexp(log_sum, _beside(sinks, log_sum))
    return out * jnp.exp(log_sum - with_sinks), with_sinks


def sink_gradients(sinks: Array | None, out: Array, log_sum: Array, slope: Array) -> Array | None:
    """Return the gradient of the sinks, float32 [heads], from what `joined` returned and the gradient of `out`."""
    if sinks is None:
        return None
    inner = (out.astype(jnp.float32) * slope.astype(jnp.float32)).sum(-1, keepdims=True)
    of_each = -jnp.exp(_beside(sinks, log_sum) - log_sum) * inner
    return of_each.sum((0, *range(2, of_each.ndim)))


def over_sequences(kernel: Any, sinks: Array | None, q: Array, k: Array, v: Array, rows: Any) -> Array:
    """Call a splash kernel, which takes sinks, on sequences of one device; `rows` are their `SegmentIds` or None."""
    out: Array = jax.vmap(lambda q, k, v, rows: kernel(q, k, v, rows, _with_exact_gradient(sinks)))(q, k, v, rows)
    return out


@jax.custom_vjp
def _with_exact_gradient(sinks: Array | None) -> Array | None:
    """Return the sinks; their gradient is float32, as they are, of each sequence before those are summed.

    The kernel's is in the format of the values, and so would be its sums over sequences and devices.
    """
    return sinks


def _forward(sinks: Array | None) -> tuple[Array | None, None]:
    return sinks, None


def _backward(_: None, slope: Array | None) -> tuple[Array | None]:
    return (None if slope is None else slope.astype(jnp.float32),)


_with_exact_gradient.defvjp(_forward, _backward)


def _beside(sinks: Array, like: Array) -> Array:
    """Return [1, heads, 1, ...]."""
    return sinks.astype(jnp.float32).reshape(1, -1, *(1,) * (like.ndim - 2))
