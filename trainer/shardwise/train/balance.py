"""Even loads for the experts of a mixture, by a gradient that is added where the router's probabilities are.

The imbalance of a sequence is experts x the sum over experts of (share of the sequence's picks) x (mean probability),
which is 1 where all are alike. Source: Fedus et al., "Switch Transformers" (2021), there of a batch; of a sequence it
depends neither on the mesh nor on microbatches, as in DeepSeek-AI, "DeepSeek-V3" (2024).

What is minimised is the mean over tokens of the loss plus factor x the mean imbalance over layers and sequences. The
loss is summed over tokens and divided by their number at the end, so here a sequence counts as often as it has tokens.

A step counts each expert's picks by a gradient, too: of zeros that are given to the model beside its parameters. So the
counts are added up wherever gradients are: over microbatches, pipelines and layers that are computed again.
"""

from collections.abc import Mapping
from functools import partial
from typing import Literal, TypeVar

import jax
import jax.numpy as jnp

from shardwise.train.config import GptConfig
from shardwise.train.layout import Layout

T = TypeVar("T")
Counted = Literal["shares", "picks"]
Array = jax.Array
PICK_BIAS = "blocks.mlp.pick_bias"
"""Where the biases of the choice are among a model's parameters. They are float32, whatever the others are kept in."""
LOADS = "blocks.mlp.loads"
"""Where the zeros are among a model's parameters."""


@partial(jax.custom_vjp, nondiff_argnums=(0, 5))
def charged(
    factor: float, shares: Array, likely: Array, picks: Array, loads: Array | None, counted: Counted = "shares"
) -> Array:
    """Return `shares`, and add the gradient of factor x imbalance to that of the loss.

    A sequence whose outputs change no loss is not charged, such as what an idle stage of a pipeline computes.

    Args:
        factor: of the imbalance of one layer.
        shares: float32 [batch, position, k], what a token's experts count for.
        likely: float32 [batch, position, experts], the router's probabilities.
        picks: int32 [batch, position, k], the experts.
        loads: float32 [batch, experts], whose gradient is each expert's share of a sequence's picks; None: not counted.
        counted: whether it is their number instead, of which sums are exact in any order.

    """
    del factor, likely, picks, loads, counted  # of the gradient alone
    return shares


_Kept = tuple[Array, Array, Array | None]


def _forward(
    factor: float, shares: Array, likely: Array, picks: Array, loads: Array | None, counted: Counted
) -> tuple[Array, _Kept]:
    return charged(factor, shares, likely, picks, loads, counted), (likely, picks, loads)


def _backward(factor: float, counted: Counted, kept: _Kept, grad: Array) -> tuple[Array, Array, None, Array | None]:
    likely, picks, loads = kept
    num_experts = likely.shape[-1]
    # d imbalance / d probability = experts x load / positions; times the positions, as often as the loss has tokens.
    load = jax.nn.one_hot(picks, num_experts, dtype=jnp.float32).mean(1).sum(1) / picks.shape[-1]
    counts = (grad != 0).any((1, 2)).astype(jnp.float32)
    slope = factor * num_experts * load * counts[:, None]
    if counted == "picks":
        load = jax.nn.one_hot(picks, num_experts, dtype=jnp.float32).sum((1, 2))
    of_loads = None if loads is None else load * counts[:, None]
    return grad, jnp.broadcast_to(slope[:, None, :], likely.shape), None, of_loads


charged.defvjp(_forward, _backward)


def zero_loads(config: GptConfig, layout: Layout, num_rows: int) -> dict[str, Array]:
    """Return what a mixture's model is given beside its parameters, of a stage's layers; for another model nothing.

    float32 [layers, row, experts]: of each row, so that until the end of a step no device tells another.
    """
    if not config.num_experts:
        return {}
    zeros = jnp.zeros((config.Layers.size // layout.stages, num_rows, config.num_experts), jnp.float32)
    return {LOADS: jax.lax.with_sharding_constraint(zeros, layout.spec(("", "batch", ""), layout.compute))}


def by_gradient(params: Mapping[str, T]) -> dict[str, T]:
    """Return what is given for each parameter, without the biases that loads move."""
    return {path: x for path, x in params.items() if path != PICK_BIAS}


def moved(rate: float, params: Mapping[str, Array], loads: Mapping[str, Array]) -> dict[str, Array]:
    """Return the biases of the choice after a step, if the parameters that steps change have any.

    That of an expert with less than the mean load goes up by the rate, and that of one with more goes down. Loads are
    numbers of picks, which are compared as such: the same on every mesh, to the last bit, up to 2^24 of an expert.
    """
    if PICK_BIAS not in params:
        return {}
    picks = loads[LOADS].astype(jnp.int32)
    total, num_experts = picks.sum(1, keepdims=True), picks.shape[1]
    few, many = picks < -(-total // num_experts), picks > total // num_experts
    return {PICK_BIAS: params[PICK_BIAS] + rate * (few.astype(jnp.float32) - many.astype(jnp.float32))}


def busiest(loads: Array) -> Array:
    """Return, of [layers, experts], the busiest expert's load over the mean, in the layer where that is most."""
    most: Array = (loads.max(1) / loads.mean(1)).max()
    return most
