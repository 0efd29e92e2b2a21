"""Which experts a token goes through, and what each counts for.

    scores = softmax or sigmoid of the logits;  picks = best of scores + bias;  shares = scores of the picks

The bias counts in the choice alone. No gradient changes it: each step moves it by a fixed rate towards even loads
(`train/balance.py`). With groups a token's experts come from its best groups alone, so that they are on few devices.

Sources: Shazeer et al. (2017) for the softmax; Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for
Mixture-of-Experts" (2024) for the bias; DeepSeek-AI, "DeepSeek-V2" and "DeepSeek-V3" (2024) for groups, each with a
score of its own, and for the sigmoid. What is outside of the groups is never picked, as in the authors' own code.
"""

import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import NamedArray

from shardwise.train.balance import charged
from shardwise.train.config import GptConfig

Array = jax.Array
_LEAST = 1e-20
"""Added to a sum of sigmoids, which may all be 0 to the last bit."""


def routed(
    config: GptConfig, logits: NamedArray, bias: NamedArray | None, loads: NamedArray | None
) -> tuple[Array, Array]:
    """Return the share of each token's experts in what it gets, and which they are: both [batch, position, k].

    Args:
        config: of the model.
        logits: float32 {batch, position, routes}.
        bias: float32 {routes} of the choice, or None.
        loads: zeros whose gradient counts the picks, float32 {batch, routes}, or None; see `balance`.

    """
    is_softmax = config.expert_score == "softmax"
    named = hnn.softmax(logits, "routes") if is_softmax else hnn.sigmoid(logits)
    scores = named.rearrange(("batch", "position", "routes")).array
    if bias is None and config.expert_groups == 1:
        shares, picks = jax.lax.top_k(scores, config.experts_per_token)
    else:
        picks = _picked(config, scores, None if bias is None else bias.array)
        shares = jnp.take_along_axis(scores, picks, axis=-1, mode="clip")
    if config.experts_share_one:
        shares = shares / (_sum(shares) if is_softmax else _sum(shares) + _LEAST)
    likely = scores if is_softmax else scores / (_sum(scores) + _LEAST)
    factor, zeros = config.balance / config.Layers.size, None if loads is None else loads.array
    shares = charged(factor, shares, likely, picks, zeros, "picks" if config.pick_bias else "shares")
    return shares if config.share_factor == 1 else config.share_factor * shares, picks


def _sum(scores: Array) -> Array:
    return scores.sum(-1, keepdims=True)


def _picked(config: GptConfig, scores: Array, bias: Array | None) -> Array:
    """Return the experts with the best scores, those of [batch, position, experts]; nothing has a gradient."""
    scores = jax.lax.stop_gradient(scores if bias is None else scores + bias)
    if config.expert_groups > 1:
        groups = scores.reshape(*scores.shape[:-1], config.expert_groups, -1)
        of_groups = jax.lax.top_k(groups, 2 if config.group_score == "two-best" else 1)[0].sum(-1)
        best = jax.lax.top_k(of_groups, config.groups_per_token)[1]
        is_best = jax.nn.one_hot(best, config.expert_groups, dtype=jnp.bool_).any(-2)
        scores = jnp.where(is_best[..., None], groups, -jnp.inf).reshape(scores.shape)
    return jax.lax.top_k(scores, config.experts_per_token)[1]
