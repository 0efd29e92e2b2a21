"""The residual stream where it enters attention and the MLP, and where it leaves them: who gathers, who scatters.

The stream and the norms are split by position between them; see `shardwise.train.layout`, which knows the partitions.
"""

import jax
from jax.sharding import PartitionSpec

Array = jax.Array


def _gathered(inside: PartitionSpec, stream: PartitionSpec, x: Array) -> Array:
    """Move part of the stream inside of attention or MLP."""
    # Pinned to the stream first: otherwise XLA may cast after the gather instead of before, and move twice the bytes.
    gathered: Array = jax.lax.with_sharding_constraint(jax.lax.with_sharding_constraint(x, stream), inside)
    return gathered


def _scattered(_inside: PartitionSpec, stream: PartitionSpec, x: Array) -> Array:
    """Move an output of attention or MLP into the stream."""
    # It may still be an unreduced sum over tensor: then XLA makes one reduce-scatter of the two.
    scattered: Array = jax.lax.with_sharding_constraint(x, stream)
    return scattered


enter = jax.custom_vjp(_gathered, nondiff_argnums=(0, 1))
enter.defvjp(
    lambda inside, stream, x: (_gathered(inside, stream, x), None),
    lambda inside, stream, _, grad: (_scattered(inside, stream, grad),),
)
leave = jax.custom_vjp(_scattered, nondiff_argnums=(0, 1))
leave.defvjp(
    lambda inside, stream, x: (_scattered(inside, stream, x), None),
    lambda inside, stream, _, grad: (_gathered(inside, stream, grad),),
)
