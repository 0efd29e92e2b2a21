"""What the MLP adds that every token of a mixture goes through beside its experts, where there is one.

It is computed where the experts are, on each device with its part of the hidden features, so that one sum over tensor
takes both, and so does one of their gradients. As a share of an expert is, what a gate lets through of it is multiplied
into the hidden features. Each function takes None for a mixture without such an MLP.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from shardwise.train.collectives import sum_over
from shardwise.train.expert_products import activated, computed, gradients
from shardwise.train.expert_weights import Places, Weights
from shardwise.train.picks import AllRows

Array = jax.Array
Kept = tuple[Array, Array]
"""Gate and up for the backward pass, [rows, shared] each."""


class Shared(NamedTuple):
    """An MLP, and how much each token takes of what it adds."""

    weights: Weights
    share: Array | None
    """Float32 [batch, position, 1]; None: all."""


class HowShared(NamedTuple):
    """How tokens go through it."""

    activation: str
    places: Places
    """Of its weights."""
    share: PartitionSpec
    """The partition of [batch, position, 1]."""
    rows: PartitionSpec
    """The partition of [rows, shared]."""


_ROWS = AllRows()


def gathered(how: HowShared | None, shared: Shared | None) -> Shared | None:
    """Gather the weights."""
    if how is None or shared is None:
        return None
    return Shared(how.places.gathered(shared.weights), shared.share)


def partition(how: HowShared | None, shared: Shared | None, *, stored: bool = False) -> Any:
    """Return the partitions of gathered weights, or of stored ones, with those of all else."""
    if how is None or shared is None:
        return None
    weights = how.places.stored if stored else how.places.whole
    return Shared(weights, None if shared.share is None else how.share)  # type: ignore[arg-type]  # partitions


def partition_of_kept(how: HowShared | None) -> Any:
    """Return the partitions of what is kept for the backward pass."""
    return None if how is None else (how.rows, how.rows)


def added(how: HowShared | None, sums: Array, x: Array, shared: Shared | None) -> tuple[Array, Kept | None]:
    """On one device: return float32 [batch, position, embed] with this device's part of the MLP's sum."""
    if how is None or shared is None:
        return sums, None
    out, gate, up = computed(how.activation, _ROWS, x, _share(x, shared), shared.weights)
    return sums.astype(jnp.float32) + _ROWS.collected(out, x), (gate, up)


def back(
    how: HowShared | None, sums: Array, x: Array, shared: Shared | None, kept: Kept | None, grad: Array
) -> tuple[Array, Shared | None]:
    """On one device: return the gradient of x likewise, and those of the weights as they are stored."""
    if how is None or shared is None or kept is None:
        return sums, None
    weights = shared.weights
    made = activated(how.activation, *kept)
    of_rows, slope, pairs = gradients(made, _ROWS, x, _share(x, shared), weights, grad)
    gate, up, down = map(how.places.scattered_matrix, weights.gradients(_ROWS, pairs, how.places.wire))
    biases = how.places.summed(weights.gradients_of_biases(_ROWS, pairs))
    of_share = None if shared.share is None else sum_over("tensor", slope, slope.dtype)
    return sums.astype(jnp.float32) + _ROWS.collected(of_rows, x), Shared(Weights(gate, up, down, biases), of_share)


def _share(x: Array, shared: Shared) -> Array:
    return jnp.ones((*x.shape[:2], 1), jnp.float32) if shared.share is None else shared.share
