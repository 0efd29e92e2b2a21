"""The biases of a mixture's experts: each row of a pick gets those of its expert.

Those of gate and up are added inside, where the rows are. That of the way back adds its share of a token's experts,
which is a small product beside them, whatever device an expert is on.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from shardwise.train.collectives import sum_over_data
from shardwise.train.fsdp import Placement
from shardwise.train.picks import AllRows, Rows

Array = jax.Array


class Biases(NamedTuple):
    """Float32 [experts, mlp] each, of the experts of one device and its part of `mlp`; of a shared one [mlp]."""

    gate: Array
    up: Array

    @staticmethod
    def partition(of_weights: PartitionSpec) -> "Biases":
        """Return their partitions, from that of gathered weights, [embed, ...]."""
        spec = PartitionSpec(*of_weights[1:])
        return Biases(spec, spec)  # type: ignore[arg-type]  # partitions in the place of arrays

    def added(self, rows: Rows | AllRows, gate: Array, up: Array) -> tuple[Array, Array]:
        """Add them to [rows, mlp], in float32."""
        of_rows = zip((gate, up), rows.spread(self.gate, self.up), strict=True)
        gate, up = ((x + bias).astype(x.dtype) for x, bias in of_rows)
        return gate, up

    def gradients(self, rows: Rows | AllRows, pairs: tuple[tuple[Array, Array], ...]) -> "Biases":
        """Return their gradients, float32: of each expert the sum over its rows of those of gate and of up.

        `pairs` are what the gradients of the three weights are products of; the second are [rows, mlp].
        """
        return Biases(*rows.of_biases(*(of for _, of in pairs[:2])))

    def summed(self, place: Placement) -> "Biases":
        """Sum gradients over the devices with other tokens."""
        return Biases(*(sum_over_data(one, one.dtype, over=place.over) for one in self))


def biases_of_picks(bias: Array, shares: Array, picks: Array, dtype: jnp.dtype) -> Array:
    """Return what the biases of the way back add to each token: [batch, position, embed].

    Args:
        bias: float32 [experts, embed].
        shares: float32 [batch, position, k].
        picks: int32, likewise.
        dtype: of what is returned; it is computed in float32.

    """
    chosen = jax.nn.one_hot(picks, len(bias), dtype=jnp.float32)
    of_experts = (chosen * shares[..., None]).sum(-2)
    added: Array = jnp.einsum("bpe,ed->bpd", of_experts, bias, precision=jax.lax.Precision.HIGHEST)
    return added.astype(dtype)
