"""The loss of completions: a model makes more likely what was rewarded more than other completions of the same prompt.

With A(i) the advantage of completion i, r = p / q, and p of the model, q of the weights that made it, p0 of the model
as it was:

    a token's loss = -min(A(i) r, A(i) clip(r, 1 - clipLow, 1 + clipHigh)) + w * (p0 / p - log(p0 / p) - 1)
    average over:    all tokens; the means of each completion; or maxTokens for each completion

w is the job's klWeight, and what it weighs an estimate of the divergence of p from p0 that is never negative. A first
step is taken from the very weights that made its completions, so r is 1 and nothing is clipped: without `updates` q is
nowhere. In either case d loss / d log p of a token is known before the backward pass, and with it as its weight the
cross entropy of the head has this loss's gradient: so there is no other backward pass than that of `train/loss.py`.

Sources: Shao et al., "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models" (2024), GRPO;
Schulman et al., "Proximal Policy Optimization Algorithms" (2017), the clipped ratio; Yu et al., "DAPO: An Open-Source
LLM Reinforcement Learning System at Scale" (2025), its two sides and the average over all tokens; Liu et al.,
"Understanding R1-Zero-Like Training: A Critical Perspective" (2025), Dr. GRPO; Schulman, "Approximating KL Divergence"
(2020).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from shardwise.job.spec.reinforcement import Reinforcement
from shardwise.train.loss import Head, HeadLoss, LossSums, Tokens, head_loss, token_losses

Array = jax.Array


class Sampled(NamedTuple):
    """What is known of each token of completions since they were made: float32 [batch, position]."""

    advantages: Array
    before: Array | None
    """-log q; None if this is the only step that learns from them."""


_NO_SPREAD = 1e-4
"""Is added to a deviation, so that rewards that hardly differ give no large advantages."""


def advantages_of(rewards: NDArray[np.float64], learning: Reinforcement) -> NDArray[np.float32]:
    """Return the advantage of each of [prompt, sample]: 0 where all rewards of a prompt are the same."""
    above = rewards - rewards.mean(1, keepdims=True)
    if learning.advantage == "normalised":
        above = above / (rewards.std(1, ddof=1, keepdims=True) + _NO_SPREAD)
    return np.where(np.ptp(rewards, axis=1, keepdims=True) > 0, above, 0.0).astype(np.float32)


def completions_loss(
    settings: HeadLoss, learning: Reinforcement, made: Sampled, reference: Array | None, head: Head, tokens: Tokens
) -> LossSums:
    """Return the sums over completions, each of which is a row; weights say which tokens are theirs.

    `cross_entropy` is the loss, `weight` what it is averaged over. `z_squared` is the sum of each token's divergence
    and `correct` that of its -log p, whatever the average; `clipped` counts the tokens whose ratio is too far already.
    `total` has the gradient of the loss, and another value.

    Args:
        settings: of the head.
        learning: what the loss is.
        made: of each token what is known since it was made.
        reference: each token's cross entropy in the model as it was, float32 [batch, position]; None without klWeight.
        head: the output layer.
        tokens: the head's input.

    """
    counted = tokens.weights
    losses = token_losses(settings, head, tokens)
    slopes, gained, clipped = _clipped(learning, made, losses)
    divergence = jnp.zeros_like(losses)
    if reference is not None:
        further = losses - reference  # log p0 - log p
        divergence = jnp.expm1(further) - further
        slopes = slopes + learning.kl_weight * jnp.expm1(further)
    weights, weight = counted, counted.sum()
    if learning.average != "tokens":
        size = counted.sum(1, keepdims=True) if learning.average == "completions" else learning.max_tokens
        weights, weight = counted / jnp.maximum(size, 1.0), (counted.max(1) > 0).sum().astype(jnp.float32)
    sums = head_loss(settings, head, tokens._replace(weights=jax.lax.stop_gradient(weights * slopes)))
    return LossSums(
        total=sums.total,
        cross_entropy=(weights * (learning.kl_weight * divergence - gained)).sum(),
        z_squared=(counted * divergence).sum(),
        correct=losses.sum(),
        weight=weight,
        clipped=None if clipped is None else (counted * clipped).sum(),
    )


def _clipped(learning: Reinforcement, made: Sampled, losses: Array) -> tuple[Array, Array, Array | None]:
    """Return A * p / q where it is not clipped and 0 elsewhere, A * the clipped ratio, and where it is clipped."""
    if made.before is None:
        return made.advantages, made.advantages, None
    ratio, is_better = jnp.exp(made.before - losses), made.advantages > 0
    low, high = 1 - learning.clip_low, 1 + learning.clip_high
    bounded = jnp.where(is_better, jnp.minimum(ratio, high), jnp.maximum(ratio, low))
    clipped = (bounded != ratio) & (made.advantages != 0)
    return jnp.where(clipped, 0.0, made.advantages * ratio), made.advantages * bounded, clipped
