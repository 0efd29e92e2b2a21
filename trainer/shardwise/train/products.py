"""Matrix products: of activations, and of activations with a weight that is gathered for the product.

The gradients suit XLA's CPU compiler, which gives a product to its fast library only if the left operand is contracted
over its last dimensions. The gradient of a weight is not: it sums over tokens, which come first. On other platforms
every product is a plain `jax.lax.dot_general` (docs/decisions/0021-products-on-cpus.md).
"""

import math
from functools import partial
from typing import NamedTuple

import jax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from shardwise.train.eight_bits import Format, multiply, multiply_back
from shardwise.train.fsdp import Placement, gather, scatter
from shardwise.train.mesh import on_each_device

Array = jax.Array
Axes = tuple[int, ...]
Dims = tuple[tuple[Axes, Axes], tuple[Axes, Axes]]
"""Dimension numbers as `jax.lax.dot_general` takes them: those contracted, then the batch ones, of both operands."""
GATHERED = "gathered weight"
"""The name of a gathered weight in checkpoint policies, so that they can drop it: all layers' would be a whole copy."""


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def product(lhs: Array, rhs: Array, dims: Dims, dtype: jax.typing.DTypeLike | None = None) -> Array:
    """Return `jax.lax.dot_general(lhs, rhs, dims)`, accumulated in `dtype`.

    Batch dimensions must come first in both operands. `contract` computes the gradient of `rhs`. Both gradients are
    accumulated in `dtype` and have their operand's dtype.
    """
    out: Array = lax.dot_general(lhs, rhs, dims, preferred_element_type=dtype)
    return out


def _forward(
    lhs: Array, rhs: Array, dims: Dims, dtype: jax.typing.DTypeLike | None
) -> tuple[Array, tuple[Array, Array]]:
    # Not `product`: a checkpoint policy that keeps matrix products recognises `dot_general` alone.
    return lax.dot_general(lhs, rhs, dims, preferred_element_type=dtype), (lhs, rhs)


def _backward(
    dims: Dims, dtype: jax.typing.DTypeLike | None, operands: tuple[Array, Array], grad: Array
) -> tuple[Array, Array]:
    lhs, rhs = operands
    grad = grad.astype(lhs.dtype)  # scores are float32 for the softmax; a float32 operand would slow the product down
    return _of_left(lhs, rhs, dims, grad), _of_right(lhs, rhs.ndim, dims, grad, dtype).astype(rhs.dtype)


product.defvjp(_forward, _backward)


class Weighting(NamedTuple):
    """How activations are multiplied by a weight."""

    dims: Dims
    """Of the activations and the weight, without batch dimensions."""
    place: Placement
    """Of the weight."""
    ins: PartitionSpec
    """The partition of the activations."""
    outs: PartitionSpec
    """The partition of the product or, if it is a sum over tensor, of that sum."""
    precision: lax.Precision | None = None
    """Of the product itself; None for that which the program is lowered with."""
    form: Format | None = None
    """The 8 bits to multiply in, forward and for the gradient of the activations; None for the compute dtype."""


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def weighted(x: Array, weight: Array, how: Weighting) -> Array:
    """Multiply activations, in the placement's compute dtype, by a float32 weight that is gathered for it.

    The weight's gradient is computed and summed over `data` in the placement's wire dtype, whatever the product is
    multiplied in; the result is float32, laid out as the weight is stored.
    """
    return _multiplied(x, gather(how.place, weight), how)


def _multiplied(x: Array, gathered: Array, how: Weighting) -> Array:
    if how.form is not None:
        return multiply(x, gathered, how.dims[0], how.form)
    out: Array = lax.dot_general(x, gathered, how.dims, precision=how.precision)
    return out


def _forward_weighted(x: Array, weight: Array, how: Weighting) -> tuple[Array, tuple[Array, Array]]:
    gathered = checkpoint_name(gather(how.place, weight), GATHERED)
    return _multiplied(x, gathered, how), (x, gathered)


def _backward_weighted(how: Weighting, operands: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, gathered = operands

    # One shard_map around product and scatter: as two steps XLA could sum the whole gradient on every device.
    def local(x: Array, grad: Array) -> Array:
        return scatter(how.place, _of_right(x, gathered.ndim, how.dims, grad, how.place.wire))

    of_weight = on_each_device(local, (how.ins, how.outs), how.place.stored)
    if how.form is not None:
        return multiply_back(grad, gathered, how.dims[0], how.form), of_weight(x, grad)
    return _of_left(x, gathered, how.dims, grad), of_weight(x, grad)


weighted.defvjp(_forward_weighted, _backward_weighted)


def _of_left(lhs: Array, rhs: Array, dims: Dims, grad: Array) -> Array:
    """Return the gradient of a product's left operand, in its dtype."""
    (left,) = jax.linear_transpose(lambda lhs: lax.dot_general(lhs, rhs, dims), lhs)(grad)
    slope: Array = left
    return slope


def _of_right(lhs: Array, rhs_ndim: int, dims: Dims, grad: Array, dtype: jax.typing.DTypeLike | None) -> Array:
    """Return the gradient of a product's right operand of so many dimensions, accumulated in `dtype`."""
    (of_lhs, of_rhs), (batch, _) = dims
    num_batch = len(batch)
    free = _others(lhs.ndim, num_batch, of_lhs)
    of_grad = tuple(range(num_batch, num_batch + len(free)))
    # `contract` returns the right operand's dimensions in another order: those contracted with the left, then the rest.
    contracted, others = (of_rhs[of_lhs.index(axis)] for axis in sorted(of_lhs)), _others(rhs_ndim, num_batch, of_rhs)
    if of_rhs and min(of_rhs) == num_batch:
        slope, came = contract(lhs, grad, free, of_grad, num_batch, dtype), (*batch, *contracted, *others)
    else:  # the other way round, which needs no copy if the rest come first
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
    """Contract a and b over these axes of each, pairwise, accumulated in `dtype`.

    The first `num_batch` axes of both are batch axes.

    Returns:
        [batch, the other axes of a, the other axes of b].

    """
    batch = tuple(range(num_batch))

    def plain(a: Array, b: Array) -> Array:
        return lax.dot_general(a, b, ((of_a, of_b), (batch, batch)), preferred_element_type=dtype)

    def copied(left: Array, right: Array, of_left: Axes, of_right: Axes) -> Array:
        """Copy the left operand first, so that its contracted axes are its last."""
        last = tuple(range(left.ndim - len(of_left), left.ndim))
        left = left.transpose((*batch, *_others(left.ndim, num_batch, of_left), *of_left))
        # The barriers keep XLA from folding this copy, or one of the result, back into the product.
        left = lax.optimization_barrier(left)
        dims = (last, of_right), (batch, batch)
        out: Array = lax.optimization_barrier(lax.dot_general(left, right, dims, preferred_element_type=dtype))
        return out

    def on_cpu(a: Array, b: Array) -> Array:
        # Copy the smaller one; of two of the same size the second. For a weight that narrows, that is the activations,
        # which are in memory already. A copy of the other, the residual's gradient, would be fused with all that
        # computes it, and that fusion is slow.
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
