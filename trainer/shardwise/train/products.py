"""Matrix products whose gradients suit XLA's CPU compiler; on other platforms they are plain `jax.lax.dot_general`s.

Called by the model's layers, by attention and by the loss. XLA gives a product on CPUs to its quick library only if the
left operand is contracted over its last dimensions. The gradient of a weight is not: it sums over tokens, which come
first. Docs: docs/decisions/0021-products-on-cpus.md.
"""

import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
from jax import lax

Array = jax.Array
Axes = tuple[int, ...]
Dims = tuple[tuple[Axes, Axes], tuple[Axes, Axes]]
"""Dimension numbers as `jax.lax.dot_general` takes them: contracted of both, batch of both."""


class DotGeneral(eqx.Module):
    """`product` as haliax's layers call it."""

    def __call__(
        self,
        lhs: Array,
        rhs: Array,
        dimension_numbers: Any,
        precision: Any = None,
        preferred_element_type: jax.typing.DTypeLike | None = None,
        out_sharding: Any = None,  # noqa: ARG002  on a mesh of `Auto` axes the partitioner decides it
    ) -> Array:
        """The product, accumulated in `preferred_element_type`."""
        assert precision is None, "no layer of the model sets it"
        contracted, batch = (tuple(tuple(map(int, axes)) for axes in pair) for pair in dimension_numbers)
        return product(lhs, rhs, (contracted, batch), preferred_element_type)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def product(lhs: Array, rhs: Array, dims: Dims, dtype: jax.typing.DTypeLike | None = None) -> Array:
    """`jax.lax.dot_general(lhs, rhs, dims)`, accumulated in `dtype`.

    Batch dimensions must come first in both operands. The gradient of `rhs` is `contract`'s.
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
    (of_lhs, of_rhs), (batch, _) = dims

    def left(lhs: Array) -> Array:
        return lax.dot_general(lhs, rhs, dims, preferred_element_type=dtype)

    (lhs_grad,) = jax.linear_transpose(left, lhs)(grad)
    num_batch = len(batch)
    free = _others(lhs, num_batch, of_lhs)
    rhs_grad = contract(lhs, grad, free, tuple(range(num_batch, num_batch + len(free))), num_batch, dtype)
    # It has [batch, contracted dimensions in the order of lhs, the others of rhs]: where each of rhs's is found there.
    came = (*batch, *(of_rhs[of_lhs.index(axis)] for axis in sorted(of_lhs)), *_others(rhs, num_batch, of_rhs))
    order = [came.index(axis) for axis in range(rhs.ndim)]
    return lhs_grad, rhs_grad.transpose(order).astype(rhs.dtype)


product.defvjp(_forward, _backward)


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
        left = left.transpose((*batch, *_others(left, num_batch, of_left), *of_left))
        # The barriers keep XLA from folding this copy, or one of the result, back into the product.
        left = lax.optimization_barrier(left)
        dims = (last, of_right), (batch, batch)
        out: Array = lax.optimization_barrier(lax.dot_general(left, right, dims, preferred_element_type=dtype))
        return out

    def on_cpu(a: Array, b: Array) -> Array:
        if _size(a, num_batch, of_a) <= _size(b, num_batch, of_b):
            return copied(a, b, of_a, of_b)
        out = copied(b, a, of_b, of_a)  # [batch, the other axes of b, those of a]
        split = out.ndim - len(_others(a, num_batch, of_a))
        return out.transpose((*batch, *range(split, out.ndim), *range(num_batch, split)))

    result: Array = lax.platform_dependent(a, b, cpu=on_cpu, default=plain)
    return result


def _others(x: Array, num_batch: int, contracted: Axes) -> Axes:
    return tuple(axis for axis in range(num_batch, x.ndim) if axis not in contracted)


def _size(x: Array, num_batch: int, contracted: Axes) -> int:
    return math.prod(x.shape[axis] for axis in _others(x, num_batch, contracted))
