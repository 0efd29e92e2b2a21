"""Gathers and sums over mesh axes inside a shard_map; sums are made in a dtype of the caller's choice, the wire's.

An axis of one device is skipped: XLA's CPU compiler would copy the array twice for such a collective. Over the two axes
of `data` a gather and a scatter take two steps (see `train/fsdp.py`), and one more where `context` is used.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from shardwise.train.mesh import sharing

Array = jax.Array
Axes = tuple[str, ...] | None
EVEN = 2048
"""A TPU's compiler scatters rows of this many elements, or a multiple, as asked. If the last dimension is scattered, or
rows do not fall into pieces that suit it (as 50,304 does not), it sums the whole array on every chip."""


def gather_over(axis: str, x: Array, *, dimension: int) -> Array:
    """Join the parts of `x` along this dimension from all devices of a mesh axis, in their order."""
    return _over(axis, x, lambda: jax.lax.all_gather(x, axis, axis=dimension, tiled=True))


def sum_over(axis: str, x: Array, wire: jnp.dtype) -> Array:
    """Sum `x` over a mesh axis in the wire's dtype, for every device; over one device return `x` as it is."""
    return _over(axis, x, lambda: jax.lax.psum(x.astype(wire), axis))


def scatter_over(axis: str, x: Array, wire: jnp.dtype, *, dimension: int) -> Array:
    """Sum `x` over a mesh axis; each device keeps its own part along this dimension."""
    return _over(axis, x, lambda: jax.lax.psum_scatter(x.astype(wire), axis, scatter_dimension=dimension, tiled=True))


def max_over(axis: str, x: Array) -> Array:
    """Return the largest `x` over a mesh axis, on every device."""
    return _over(axis, x, lambda: jax.lax.pmax(x, axis))


def gather_over_data(x: Array, *, dimension: int, over: Axes = None) -> Array:
    """Join the parts of `x` along this dimension from all devices of `data` and `context`, in their order.

    Of the three functions `over` is those mesh axes, if not all of them.
    """
    for axis in reversed(over or sharing()):  # inner first: the scatter in reverse, so that parts keep their order
        x = gather_over(axis, x, dimension=dimension)
    return x


def scatter_over_data(x: Array, wire: jnp.dtype, *, dimension: int, over: Axes = None) -> Array:
    """Sum `x` over `data` and `context`; each device keeps its own part along this dimension."""
    for axis in over or sharing():
        x = scatter_over(axis, x, wire, dimension=dimension)
    return x


def sum_over_data(x: Array, wire: jnp.dtype, *, over: Axes = None) -> Array:
    """Sum `x` over `data` and `context`, for every device."""
    axes = tuple(axis for axis in over or sharing() if jax.lax.axis_size(axis) > 1)
    if not axes:
        return x
    summed: Array = jax.lax.psum(x.astype(wire), axes)
    return summed


def _over(axis: str, x: Array, collective: Callable[[], Array]) -> Array:
    return x if jax.lax.axis_size(axis) == 1 else collective()
