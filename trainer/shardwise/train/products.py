"""Matrix products: of activations, and of activations with a weight that is gathered for it.

Called by the model's layers, by attention and by the loss. The gradients suit XLA's CPU compiler, which gives a product
to its quick library only if the left operand is contracted over its last dimensions. The gradient of a weight is not:
it sums over tokens, which come first. On other platforms all are plain `jax.lax.dot_general`s. Docs:
docs/decisions/0021-products-on-cpus.md.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from shardwise.train.gather import Placement, gather, scatter
from shardwise.train.mesh import unclaimed

Array = jax.Array
Axes = tuple[int, ...]
Dims = tuple[tuple[Axes, Axes], tuple[Axes, Axes]]
"""Dimension numbers as `jax.lax.dot_general` takes them: contracted of both, batch of both."""
GATHERED = "gathered weight"
"""The name of a gathered weight, for policies of what the backward pass keeps: kept, they are a whole copy."""


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def product(lhs: Array, rhs: Array, dims: Dims, dtype: jax.typing.DTypeLike | None = None) -> Array:
    """`jax.lax.dot_general(lhs, rhs, dims)`, accumulated in `dtype`.

    Batch dimensions must come first in both operands. The gradient of `rhs` is `contract`'s; both gradients are
    accumulated in `dtype` and have their operand's.
    """
    out: Array = lax.dot_general(lhs, rhs, dims, preferred_element_type=dtype)
    return out


def _forward(
    lhs: Array, rhs: Array, dims: Dims, dtype: jax.typing.DTypeLike | None
) -> tuple[Array, tuple[Array, Array]]:
    # Not `product`: a checkpoint policy that keeps matrix products looks for `dot_general`.
    return lax.dot_general(lhs, rhs, dims, preferred_element_type=dtype), (lhs, rhs)


def _backward(
    dims: Dims, dtype: jax.typing.DTypeLike | None, operands: tuple[Array, Array], grad: Array
) -> tuple[Array, Array]:
    lhs, rhs = operands
    grad = grad.astype(lhs.dtype)  # scores are float32 for the softmax; a float32 operand would slow the product down
    return _of_left(lhs, rhs, dims, grad), _of_right(lhs, rhs.ndim, dims, grad, dtype).astype(rhs.dtype)


product.defvjp(_forward, _backward)


class Weighting(NamedTuple):
    """How activations are multiplied with a weight."""

    dims: Dims
    """Of the activations and the weight; no batch dimensions."""
    place: Placement
    """Of the weight."""
    ins: PartitionSpec
    """The partition of the activations."""
    outs: PartitionSpec
    """The partition of the product, where it is no sum over tensor; else of the sum."""


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def weighted(x: Array, weight: Array, how: Weighting) -> Array:
    """The product of activations, in the placement's compute dtype, with a float32 weight that is gathered for it.

    The weight's gradient leaves the product in the placement's wire dtype, is summed over `data` in it, and comes back
    float32 where the weight is stored.
    """
    out: Array = lax.dot_general(x, gather(how.place, weight), how.dims)
    return out


def _forward_weighted(x: Array, weight: Array, how: Weighting) -> tuple[Array, tuple[Array, Array]]:
    gathered = checkpoint_name(gather(how.place, weight), GATHERED)
    return lax.dot_general(x, gathered, how.dims), (x, gathered)


def _backward_weighted(how: Weighting, operands: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, gathered = operands

    def local(x: Array, grad: Array) -> Array:
        return scatter(how.place, _of_right(x, gathered.ndim, how.dims, grad, how.place.wire))

    mapped = jax.shard_map(
        local,
        in_specs=(how.ins, how.outs),
        out_specs=how.place.stored,
        axis_names=unclaimed(),
        check_vma=False,
    )
    return _of_left(x, gathered, how.dims, grad), mapped(x, grad)


weighted.defvjp(_forward_weighted, _backward_weighted)


def _of_left(lhs: Array, rhs: Array, dims: Dims, grad: Array) -> Array:
    """The gradient of a product's left operand, in its dtype."""
    (left,) = jax.linear_transpose(lambda lhs: lax.dot_general(lhs, rhs, dims), lhs)(grad)
    slope: Array = left
    return slope


def _of_right(lhs: Array, rhs_ndim: int, dims: Dims, grad: Array, dtype: jax.typing.DTypeLike | None) -> Array:
    """The gradient of a product's right operand of so many dimensions, accumulated in `dtype`."""
    (of_lhs, of_rhs), (batch, _) = dims
    num_batch = len(batch)
    free = _others(lhs.ndim, num_batch, of_lhs)
    of_grad = tuple(range(num_batch, num_batch + len(free)))
    # Where each of the right operand's dimensions comes from: those contracted with it, then its others.
    contracted, others = (of_rhs[of_lhs.index(axis)] for axis in sorted(of_lhs)), _others(rhs_ndim, num_batch, of_rhs)
    if of_rhs and min(of_rhs) == num_batch:
        slope, came = contract(lhs, grad, free, of_grad, num_batch, dtype), (*batch, *contracted, *others)
    else:  # the other way round, which needs no copy where its others come first
        slope, came = contract(grad, lhs, of_grad, free, num_batch, dtype), (*batch, *others, *contracted)
    return slope.transpose([came.index(axis) for axis in range(rhs_ndim)])


def contract(
    a: Array,
    b: Array,
    of_a: Axes,
    of_b: Axes,
    num_batch: int = 0,
    dtype: jax.typing.DTypeLike | None = None,
) -> Array:
    """The sum of a b over these axes of each, pairwise, accumulated in `dtype`.

    The first `num_batch` axes of both go along.

    Returns:
        [batch, the other axes of a, the other axes of b].

    """
    batch = tuple(range(num_batch))

    def plain(a: Array, b: Array) -> Array:
        return lax.dot_general(a, b, ((of_a, of_b), (batch, batch)), preferred_element_type=dtype)

    def copied(left: Array, right: Array, of_left: Axes, of_right: Axes) -> Array:
        """The left operand is copied first, so that its contracted axes are its last."""
        last = tuple(range(left.ndim - len(of_left), left.ndim))
        left = left.transpose((*batch, *_others(left.ndim, num_batch, of_left), *of_left))
        # The barriers keep XLA from folding this copy, or one of the result, back into the product.
        left = lax.optimization_barrier(left)
        dims = (last, of_right), (batch, batch)
        out: Array = lax.optimization_barrier(lax.dot_general(left, right, dims, preferred_element_type=dtype))
        return out

    def on_cpu(a: Array, b: Array) -> Array:
        # Of two of one size the second: for a weight that narrows it is the activations, which are in memory as they
        # are. XLA fuses a copy of the other, the residual's gradient, with all that makes it, and that fusion is slow.
        if _size(a, num_batch, of_a) < _size(b, num_batch, of_b):
            return copied(a, b, of_a, of_b)
        out = copied(b, a, of_b, of_a)  # [batch, the other axes of b, those of a]
        split = out.ndim - len(_others(a.ndim, num_batch, of_a))
        return out.transpose((*batch, *range(split, out.ndim), *range(num_batch, split)))

    result: Array = lax.platform_dependent(a, b, cpu=on_cpu, default=plain)
    return result


def _others(ndim: int, num_batch: int, contracted: Axes) -> Axes:
    return tuple(axis for axis in range(num_batch, ndim) if axis not in contracted)


def _size(x: Array, num_batch: int, contracted: Axes) -> int:
    return math.prod(x.shape[axis] for axis in _others(x.ndim, num_batch, contracted))
