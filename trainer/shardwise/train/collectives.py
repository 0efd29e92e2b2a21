"""Gathers and sums over mesh axes inside a shard_map; sums are on the wire in a dtype of the caller's choice.

Called by the embedding and the loss, the two places whose collectives are written by hand. An axis of one device is
left alone: XLA's CPU compiler would copy the array, twice, for a collective that has nobody to talk to.
"""

import jax
import jax.numpy as jnp

Array = jax.Array


def gather_columns(table: Array, *, fsdp: bool) -> Array:
    """A [rows, columns] table whole over `data`, which FSDP has split by column."""
    if not fsdp or jax.lax.axis_size("data") == 1:
        return table
    whole: Array = jax.lax.all_gather(table, "data", axis=1, tiled=True)
    return whole


def sum_over(axis: str, x: Array, wire: jnp.dtype) -> Array:
    """The sum of `x` over a mesh axis, on every device of it, in the wire's dtype; over one device `x` as it is."""
    if jax.lax.axis_size(axis) == 1:
        return x
    summed: Array = jax.lax.psum(x.astype(wire), axis)
    return summed


def max_over(axis: str, x: Array) -> Array:
    """The largest `x` over a mesh axis, on every device of it."""
    if jax.lax.axis_size(axis) == 1:
        return x
    largest: Array = jax.lax.pmax(x, axis)
    return largest


def sum_over_data(x: Array, wire: jnp.dtype, *, split: int | None) -> Array:
    """The sum of `x` over `data`: where FSDP splits this dimension, each device keeps its own part of it only."""
    if split is None or jax.lax.axis_size("data") == 1:
        return sum_over("data", x, wire)
    summed: Array = jax.lax.psum_scatter(x.astype(wire), "data", scatter_dimension=split, tiled=True)
    return summed
