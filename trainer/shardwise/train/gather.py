"""A parameter on its way: from where it is stored to where it is computed with, and its gradient back.

Called by the layout, which knows the places, and by `products`, whose weights travel inside of the product. The
collectives are written by hand. What XLA's partitioner would make of shardings alone depends on the kind of TPU: it may
join two steps into one, and sum a whole gradient on every chip instead of scattering it.

FSDP over more than a few devices goes in two steps, inner mesh axis first on the way there and last on the way back. A
TPU's gather or scatter over a group of 64 chips becomes an all-reduce of the whole array, twice the bytes; groups of up
to 16 get what they ask for (docs/decisions/0022-fsdp-in-two-steps.md).
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout as InMemory
from jax.experimental.layout import with_layout_constraint
from jax.sharding import PartitionSpec

from shardwise.train.collectives import EVEN, gather_over_data, scatter_over_data, sum_over_data
from shardwise.train.mesh import DATA, unclaimed

Array = jax.Array
_ROWS = 8
"""Rows of a part, and multiples, that a TPU's compiler scatters as they are. Others it pads; of fewer it sums the whole
array on every chip, whatever its width."""


class Placement(NamedTuple):
    """Where a parameter is kept, where it is computed with, and in which formats it travels."""

    stored: PartitionSpec
    """As it is kept between steps: split by FSDP and over tensor."""
    whole: PartitionSpec
    """As it is computed with: whole over `data`."""
    split: int | None
    """The dimension that FSDP splits over `data`; None where it splits none."""
    compute: jnp.dtype
    """The dtype that it has on the way there, and in the computation."""
    wire: jnp.dtype
    """The dtype in which its gradient is summed on the way back."""


def gather(place: Placement, parameter: Array) -> Array:
    """The parameter as it is computed with; not differentiable: see `whole` and `products.weighted`."""
    if place.split is None:
        return parameter.astype(place.compute)
    split = place.split

    def local(part: Array) -> Array:
        return gather_over_data(part.astype(place.compute), dimension=split)

    mapped = jax.shard_map(local, in_specs=place.stored, out_specs=place.whole, axis_names=unclaimed(), check_vma=False)
    gathered: Array = mapped(parameter)
    return gathered


def scatter(place: Placement, gradient: Array) -> Array:
    """Inside a shard_map: one device's gradient of the whole parameter as its part of the sum over data, in float32."""
    if place.split is None:
        return sum_over_data(gradient, place.wire).astype(jnp.float32)
    # In memory as in its shape: with what is scattered as the last dimension a TPU would sum the whole on every chip.
    folded = _folded(gradient.astype(place.wire), place.split)
    rows = with_layout_constraint(folded, InMemory(tuple(range(folded.ndim))))
    part = scatter_over_data(rows, place.wire, dimension=place.split).astype(jnp.float32)
    shape = list(gradient.shape)
    shape[place.split] = shape[place.split] // _ways()
    return part.reshape(shape)


def _folded(gradient: Array, split: int) -> Array:
    """A matrix of narrow rows with several rows in one, where the parts that are scattered have that many.

    See `EVEN`. Four times that is better still: rows of 4096 are padded on some rings of 16 chips, and 6 % more moves.
    Each part keeps a multiple of `_ROWS`.
    """
    rows, width = gradient.shape[0], math.prod(gradient.shape[1:])
    for even in (4 * EVEN, 2 * EVEN, EVEN):
        joined = even // math.gcd(even, width)
        if split == 0 and rows % (_ways() * joined * _ROWS) == 0:
            return gradient.reshape(rows // joined, width * joined)
    return gradient


def _ways() -> int:
    return math.prod(jax.lax.axis_size(axis) for axis in DATA)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def whole(place: Placement, parameter: Array) -> Array:
    """`gather` of a float32 parameter that is added or multiplied with; its gradient goes back where it is stored."""
    return gather(place, parameter)


def _forward(place: Placement, parameter: Array) -> tuple[Array, None]:
    return gather(place, parameter), None


def _backward(place: Placement, _: None, gradient: Array) -> tuple[Array]:
    return (jax.lax.with_sharding_constraint(gradient.astype(jnp.float32), place.stored),)


whole.defvjp(_forward, _backward)
