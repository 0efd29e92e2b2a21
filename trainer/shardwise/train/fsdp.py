"""FSDP: gather a parameter from where it is stored to where it is computed with, and scatter its gradient back.

The collectives are written by hand. What XLA's partitioner makes of shardings alone depends on the kind of TPU: it may
join two steps into one, and sum a whole gradient on every chip instead of scattering it.

FSDP over more than a few devices takes two steps: a gather starts with the inner mesh axis, a scatter ends with it. On
TPUs one over a group of 64 chips becomes an all-reduce of the whole array, twice the bytes; groups of up to 16 get what
they ask for (docs/decisions/0022-fsdp-in-two-steps.md).
"""

import math
from functools import partial
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout as InMemory
from jax.experimental.layout import with_layout_constraint
from jax.sharding import PartitionSpec

from shardwise.train.collectives import EVEN, gather_over_data, scatter_over_data, sum_over_data
from shardwise.train.mesh import on_each_device

Array = jax.Array
_ROWS = (16, 8)
"""A TPU's compiler scatters parts of so many rows, or a multiple, as they are. It pads others; of fewer rows it sums
the whole array on every chip, whatever its width. On rings of 4 chips of v5p it does so with 8 rows, and with 24."""


class Placement(NamedTuple):
    """Where a parameter is stored, where it is computed with, and the dtypes in which it moves between them."""

    stored: PartitionSpec
    """The partition between steps: split by FSDP and over tensor."""
    whole: PartitionSpec
    """The partition while it is computed with: whole over `data`."""
    split: int | None
    """The dimension that FSDP splits over `data`, or None."""
    over: tuple[str, ...]
    """The mesh axes whose devices have other tokens and the same weight, whole: `data`, and `context`."""
    compute: jnp.dtype
    """The dtype of the gather and of the computation."""
    wire: jnp.dtype
    """The dtype in which its gradient is summed over devices."""


def gather(place: Placement, parameter: Array) -> Array:
    """Gather the parameter; not differentiable: see `whole` and `products.weighted`."""
    if place.split is None:
        return parameter.astype(place.compute)
    split = place.split

    def local(part: Array) -> Array:
        # Cast first: a gather in the compute dtype moves half the bytes.
        return gather_over_data(part.astype(place.compute), dimension=split, over=place.over)

    return on_each_device(local, place.stored, place.whole)(parameter)


def scatter(place: Placement, gradient: Array) -> Array:
    """Inside a shard_map: sum a gradient of the whole parameter over data, and keep this device's part, in float32."""
    if place.split is None:
        return sum_over_data(gradient, place.wire, over=place.over).astype(jnp.float32)
    # Laid out in memory as in its shape: with the scattered dimension last a TPU would sum the whole on every chip.
    folded, ways = gradient.astype(place.wire), math.prod(jax.lax.axis_size(axis) for axis in place.over)
    if place.split == 0:
        folded = fold(folded, ways)
    rows = with_layout_constraint(folded, InMemory(tuple(range(folded.ndim))))
    part = scatter_over_data(rows, place.wire, dimension=place.split, over=place.over).astype(jnp.float32)
    shape = list(gradient.shape)
    shape[place.split] = shape[place.split] // ways
    return part.reshape(shape)


def fold(gradient: Array, ways: int) -> Array:
    """Join narrow rows to rows of a multiple of `EVEN` elements, if every part keeps a number of rows of `_ROWS`.

    In this form a TPU does scatter along the first axis over that many devices, as asked. Rows of four times `EVEN` are
    tried first: some rings of 16 chips pad rows of 4096, which moves 6 % more. Others have two dimensions all
    the same: of more the rows of a TPU's tiles would be those of the last but one, and few.
    """
    rows, width = gradient.shape[0], math.prod(gradient.shape[1:])
    for kept, even in product(_ROWS, (4 * EVEN, 2 * EVEN, EVEN)):
        joined = even // math.gcd(even, width)
        if rows % (ways * joined * kept) == 0:
            return gradient.reshape(rows // joined, width * joined)
    return gradient.reshape(rows, width)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def whole(place: Placement, parameter: Array) -> Array:
    """Gather a float32 parameter outside of a product, such as a bias; its gradient is laid out as it is stored."""
    return gather(place, parameter)


def _forward(place: Placement, parameter: Array) -> tuple[Array, None]:
    return gather(place, parameter), None


def _backward(place: Placement, _: None, gradient: Array) -> tuple[Array]:
    return (jax.lax.with_sharding_constraint(gradient.astype(jnp.float32), place.stored),)


whole.defvjp(_forward, _backward)
