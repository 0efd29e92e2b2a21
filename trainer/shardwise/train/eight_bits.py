"""Matrix products in 8 bits: both operands are rounded to 8 bits, each row that is contracted with a scale of its own.

A row's scale is its largest number over the largest of the format, so it is computed anew each time, and no device
needs to know another's. The hardware sums in 32 bits and rounds once, to the operands' own dtype. Sources: Micikevicius
et al., "FP8 Formats for Deep Learning" (2022) for e4m3; Dettmers et al., "LLM.int8()" (2022) for scales by row and by
column.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

Array = jax.Array
Axes = tuple[int, ...]
Format = Literal["float8", "int8"]
PRODUCT = "product in 8 bits"
"""The name of a scaled product in checkpoint policies: its sums would be of no use without their scales."""


class _Numbers(NamedTuple):
    dtype: jnp.dtype
    most: float
    """The largest number."""


_NUMBERS: dict[Format, _Numbers] = {
    "float8": _Numbers(jnp.dtype(jnp.float8_e4m3fn), 448.0),
    "int8": _Numbers(jnp.dtype(jnp.int8), 127.0),
}


def multiply(lhs: Array, rhs: Array, contracted: tuple[Axes, Axes], form: Format) -> Array:
    """Contract these axes of both, pairwise.

    Returns:
        [the other axes of lhs, the other axes of rhs], in the dtype of `lhs`.

    """
    numbers = _NUMBERS[form]
    (left, of_left), (right, of_right) = (
        _rounded(operand, axes, numbers) for operand, axes in zip((lhs, rhs), contracted, strict=True)
    )
    # Not wider: sums are moved between devices before they are scaled, and int32 would be summed whole on each.
    sums = lax.dot_general(left, right, (contracted, ((), ())), preferred_element_type=lhs.dtype)
    scale = of_left.reshape((*of_left.shape, *(1 for _ in of_right.shape))) * of_right
    out: Array = checkpoint_name((sums.astype(jnp.float32) * scale).astype(lhs.dtype), PRODUCT)
    return out


def multiply_back(grad: Array, rhs: Array, contracted: tuple[Axes, Axes], form: Format) -> Array:
    """Return the gradient of a product's left operand, whose dimensions are in another order than the product's.

    Args:
        grad: of the product, [the other axes of lhs, the other axes of rhs].
        rhs: its right operand.
        contracted: the axes that it has contracted.
        form: the numbers to multiply in.

    """
    of_lhs, of_rhs = contracted
    others = tuple(axis for axis in range(rhs.ndim) if axis not in of_rhs)
    free = grad.ndim - len(others)
    out = multiply(grad, rhs, (tuple(range(free, grad.ndim)), others), form)
    came = [axis for axis in range(free + len(of_lhs)) if axis not in of_lhs]
    came += [of_lhs[of_rhs.index(axis)] for axis in sorted(of_rhs)]
    return out.transpose([came.index(axis) for axis in range(out.ndim)])


def _rounded(x: Array, axes: Axes, numbers: _Numbers) -> tuple[Array, Array]:
    """Return x in 8 bits, and the scale of each row over `axes`, float32 without these axes.

    A row with a number that is not finite has such a scale, so the product shows it.
    """
    wide = x.astype(jnp.float32)
    most = jnp.max(jnp.abs(wide), axis=axes, keepdims=True)
    # Smaller ones are flushed to zero, and a row of numbers as small would be divided by that.
    scale = jnp.maximum(most / numbers.most, np.finfo(np.float32).tiny)
    narrow = wide / scale
    if jnp.issubdtype(numbers.dtype, jnp.integer):
        narrow = jnp.round(narrow)
    return narrow.astype(numbers.dtype), scale.squeeze(axes)
