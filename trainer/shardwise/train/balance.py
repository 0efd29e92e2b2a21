"""Even loads for the experts of a mixture, by a gradient that is added where the router's probabilities are.

The imbalance of a sequence is experts x the sum over experts of (share of the sequence's picks) x (mean probability),
which is 1 where all are alike. Source: Fedus et al., "Switch Transformers" (2021), there of a batch; of a sequence it
depends neither on the mesh nor on microbatches, as in DeepSeek-AI, "DeepSeek-V3" (2024).

What is minimised is the mean over tokens of the loss plus factor x the mean imbalance over layers and sequences. The
loss is summed over tokens and divided by their number at the end, so here a sequence counts as often as it has tokens.
"""

from functools import partial

import jax
import jax.numpy as jnp

Array = jax.Array


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def charged(factor: float, shares: Array, likely: Array, picks: Array) -> Array:
    """Return `shares`, and add the gradient of factor x imbalance to that of the loss.

    A sequence whose outputs change no loss is not charged, such as what an idle stage of a pipeline computes.

    Args:
        factor: of the imbalance of one layer.
        shares: float32 [batch, position, k], what a token's experts count for.
        likely: float32 [batch, position, experts], the router's probabilities.
        picks: int32 [batch, position, k], the experts.

    """
    del factor, likely, picks  # of the gradient alone
    return shares


def _forward(factor: float, shares: Array, likely: Array, picks: Array) -> tuple[Array, tuple[Array, Array]]:
    return charged(factor, shares, likely, picks), (likely, picks)


def _backward(factor: float, kept: tuple[Array, Array], grad: Array) -> tuple[Array, Array, None]:
    likely, picks = kept
    num_experts = likely.shape[-1]
    # d imbalance / d probability = experts x load / positions; times the positions, as often as the loss has tokens.
    load = jax.nn.one_hot(picks, num_experts, dtype=jnp.float32).mean(1).sum(1) / picks.shape[-1]
    counts = (grad != 0).any((1, 2)).astype(jnp.float32)
    slope = factor * num_experts * load * counts[:, None]
    return grad, jnp.broadcast_to(slope[:, None, :], likely.shape), None


charged.defvjp(_forward, _backward)
