"""A parameter on its way: from where it is stored to where it is computed with, and its gradient back.

Used by the layout, which knows the places, and by `products`, whose weights travel inside of the product: only there can
the sum of a weight's gradient be made in the dtype that the job asks for, because a gradient in JAX otherwise has the
dtype of what was multiplied.

FSDP over more than a few devices goes in two steps, inner mesh axis first on the way there and last on the way back.
XLA's compiler for TPUs turns a gather or a scatter over a group of 64 chips into an all-reduce of the whole array, twice
the bytes; groups of up to 16 get what they ask for (docs/decisions/0022-fsdp-in-two-steps.md).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

Array = jax.Array


class Placement(NamedTuple):
    """Where a parameter is, on its way from storage to computation, and in which formats it travels."""

    stored: PartitionSpec
    """As it is kept between steps: split by FSDP and over tensor."""
    between: PartitionSpec
    """After the first of two steps: whole over the inner axis of `data`, split over the outer one."""
    whole: PartitionSpec
    """As it is computed with: whole over `data`."""
    compute: jnp.dtype
    """The dtype that it has on the way there, and in the computation."""
    wire: jnp.dtype
    """The dtype in which its gradient is summed on the way back."""


def gather(place: Placement, parameter: Array) -> Array:
    """The parameter as it is computed with; not differentiable: see `whole` and `products.weighted`."""
    # Pinned before it moves, or XLA may cast behind the gather and move twice the bytes.
    moved = jax.lax.with_sharding_constraint(parameter.astype(place.compute), place.stored)
    for spec in _steps(place)[1:]:
        moved = jax.lax.with_sharding_constraint(moved, spec)
    return moved


def scatter(place: Placement, gradient: Array) -> Array:
    """A gradient, still to be summed over `data`, as the sum in float32 where the parameter is stored."""
    moved = gradient.astype(place.wire)
    for spec in _steps(place)[-2::-1]:
        moved = jax.lax.with_sharding_constraint(moved, spec)
    return moved.astype(jnp.float32)


def _steps(place: Placement) -> list[PartitionSpec]:
    """Every place on the way there, the first and the last included."""
    between = [place.between] if place.between not in (place.stored, place.whole) else []
    return [place.stored, *between, place.whole]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def whole(place: Placement, parameter: Array) -> Array:
    """`gather`, whose gradient goes back by `scatter`; the parameter is float32."""
    return gather(place, parameter)


def _forward(place: Placement, parameter: Array) -> tuple[Array, None]:
    return gather(place, parameter), None


def _backward(place: Placement, _: None, gradient: Array) -> tuple[Array]:
    return (scatter(place, gradient),)


whole.defvjp(_forward, _backward)
