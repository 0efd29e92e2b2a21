"""Gathers and sums over mesh axes inside a shard_map; sums are on the wire in a dtype of the caller's choice.

Called where collectives are written by hand: for parameters, the token tables and the loss. An axis of one device is
left alone: XLA's CPU compiler would copy the array, twice, for a collective that has nobody to talk to. Over the two
axes of `data` a gather and a scatter go in two steps: `train/gather.py` says why.
"""

import jax
import jax.numpy as jnp

from shardwise.train.mesh import DATA

Array = jax.Array
EVEN = 2048
"""Rows of so many elements, or a multiple, are scattered by a TPU's compiler as asked. Where the last dimension is the
one that is scattered, or does not fall into pieces that suit it, it sums the whole array on every chip; 50,304 does
not."""


def gather_over(axis: str, x: Array, *, dimension: int) -> Array:
    """The parts of `x` along this dimension from all devices of a mesh axis, joined in their order."""
    if jax.lax.axis_size(axis) == 1:
        return x
    whole: Array = jax.lax.all_gather(x, axis, axis=dimension, tiled=True)
    return whole


def sum_over(axis: str, x: Array, wire: jnp.dtype) -> Array:
    """The sum of `x` over a mesh axis, on every device of it, in the wire's dtype; over one device `x` as it is."""
    if jax.lax.axis_size(axis) == 1:
        return x
    summed: Array = jax.lax.psum(x.astype(wire), axis)
    return summed


def scatter_over(axis: str, x: Array, wire: jnp.dtype, *, dimension: int) -> Array:
    """The sum of `x` over a mesh axis, of which each device keeps its own part along this dimension."""
    if jax.lax.axis_size(axis) == 1:
        return x
    summed: Array = jax.lax.psum_scatter(x.astype(wire), axis, scatter_dimension=dimension, tiled=True)
    return summed


def max_over(axis: str, x: Array) -> Array:
    """The largest `x` over a mesh axis, on every device of it."""
    if jax.lax.axis_size(axis) == 1:
        return x
    largest: Array = jax.lax.pmax(x, axis)
    return largest


def gather_over_data(x: Array, *, dimension: int) -> Array:
    """The parts of `x` along this dimension from all devices of `data`, joined in their order."""
    for axis in reversed(DATA):
        x = gather_over(axis, x, dimension=dimension)
    return x


def scatter_over_data(x: Array, wire: jnp.dtype, *, dimension: int) -> Array:
    """The sum of `x` over `data`, of which each device keeps its own part along this dimension."""
    for axis in DATA:
        x = scatter_over(axis, x, wire, dimension=dimension)
    return x


def sum_over_data(x: Array, wire: jnp.dtype) -> Array:
    """The sum of `x` over `data`, on every device of it."""
    axes = tuple(axis for axis in DATA if jax.lax.axis_size(axis) > 1)
    if not axes:
        return x
    summed: Array = jax.lax.psum(x.astype(wire), axes)
    return summed
