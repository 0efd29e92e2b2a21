"""Sums over mesh axes inside a shard_map, on the wire in a dtype of the caller's choice.

Called by the embedding and the loss, the two places whose collectives are written by hand.
"""

import jax
import jax.numpy as jnp

Array = jax.Array


def sum_over(axis: str, x: Array, wire: jnp.dtype) -> Array:
    """The sum of `x` over a mesh axis, on every device of it, in the wire's dtype."""
    summed: Array = jax.lax.psum(x.astype(wire), axis)
    return summed


def sum_columns_over_data(x: Array, wire: jnp.dtype, *, fsdp: bool) -> Array:
    """The sum of a [rows, columns] table over `data`: with FSDP each device keeps its own columns only."""
    if not fsdp:
        return sum_over("data", x, wire)
    summed: Array = jax.lax.psum_scatter(x.astype(wire), "data", scatter_dimension=1, tiled=True)
    return summed
