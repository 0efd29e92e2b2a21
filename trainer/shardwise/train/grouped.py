"""Products of rows that are sorted by group with one matrix for each group: of tokens with the experts they picked.

XLA for TPUs multiplies as many rows with each matrix as it has. For CPUs, and for GPUs as compiled on a machine without
one, it multiplies all rows with every matrix; there the rows are taken by the block instead, each of one group (Gale et
al., "MegaBlocks", 2022). A block begins where its group or the block before it ends, so rows are never moved; what a
block has beyond its group's end is overwritten by the next one, or left out.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import RaggedDotDimensionNumbers, ragged_dot_general

Array = jax.Array

_INTO = RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), [0], [1])
_OUT_OF = RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), [0], [1])
_OF_WEIGHT = RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
_MOST_ROWS = 512
"""Of a block: a product of so many keeps a core or a GPU as busy as a larger one."""


def into(rows: Array, weight: Array, sizes: Array) -> Array:
    """Return [rows, mlp] of [rows, embed] and [embed, groups, mlp]; `sizes`, int32 [groups], has the rows of each."""

    def in_blocks(rows: Array, weight: Array, sizes: Array) -> Array:
        return _by_rows(lambda block, of_group: block @ of_group, rows, weight, sizes, weight.shape[2])

    ragged = partial(ragged_dot_general, ragged_dot_dimension_numbers=_INTO)
    out: Array = lax.platform_dependent(rows, weight, sizes, tpu=ragged, default=in_blocks)
    return out


def out_of(rows: Array, weight: Array, sizes: Array) -> Array:
    """Return [rows, embed] of [rows, mlp] and [embed, groups, mlp]."""

    def in_blocks(rows: Array, weight: Array, sizes: Array) -> Array:
        return _by_rows(lambda block, of_group: block @ of_group.T, rows, weight, sizes, weight.shape[0])

    ragged = partial(ragged_dot_general, ragged_dot_dimension_numbers=_OUT_OF)
    out: Array = lax.platform_dependent(rows, weight, sizes, tpu=ragged, default=in_blocks)
    return out


def of_weight(of_embed: Array, of_mlp: Array, sizes: Array, dtype: jax.typing.DTypeLike) -> Array:
    """Return [groups, embed, mlp]: of each group the sum over its rows of [rows, embed] x [rows, mlp]."""

    def in_blocks(of_embed: Array, of_mlp: Array, sizes: Array) -> Array:
        size, blocks = _blocks(sizes, of_embed.shape[0])
        of_embed, of_mlp = _padded(of_embed, size), _padded(of_mlp, size)

        def add(sums: Array, block: _Block) -> tuple[Array, None]:
            left, right = (lax.dynamic_slice_in_dim(each, block.start, size) for each in (of_embed, of_mlp))
            left = jnp.where(jnp.arange(size)[:, None] < block.used, left, 0)
            part = lax.dot_general(left, right, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
            return sums.at[block.group].add(part), None

        shape = (sizes.size, of_embed.shape[1], of_mlp.shape[1])
        sums: Array = lax.scan(add, jnp.zeros(shape, jnp.float32), blocks)[0]
        return sums.astype(dtype)

    ragged = partial(ragged_dot_general, ragged_dot_dimension_numbers=_OF_WEIGHT, preferred_element_type=dtype)
    out: Array = lax.platform_dependent(of_embed, of_mlp, sizes, tpu=ragged, default=in_blocks)
    return out


class _Block(NamedTuple):
    """Some rows that follow each other. Of all blocks together each field has [blocks]."""

    group: Array
    """int32: which matrix they are multiplied with."""
    start: Array
    """int32: the first row."""
    used: Array
    """int32: how many rows, counted from it, are the group's."""


def _blocks(sizes: Array, num_rows: int) -> tuple[int, _Block]:
    """Return how many rows a block has, and as many blocks as the rows may need, however they spread over groups.

    A group's last block has rows to spare. With blocks of at most half a group's mean share these are, together with
    the blocks that are not needed, at most half as many as the rows. Blocks that are not needed begin after the last.
    """
    num_groups = sizes.size
    size = min(_MOST_ROWS, 1 << max(0, (num_rows // (2 * num_groups)).bit_length() - 1))
    most = (num_rows + min(num_groups, num_rows) * (size - 1)) // size
    needed = -(-sizes // size)
    ends, first = jnp.cumsum(needed), jnp.cumsum(sizes) - sizes
    number = jnp.arange(most, dtype=jnp.int32)
    group = jnp.minimum(jnp.searchsorted(ends, number, side="right"), num_groups - 1).astype(jnp.int32)
    start = first[group] + size * (number - (ends - needed)[group])
    used = jnp.clip((first + sizes)[group] - start, 0, size)
    return size, _Block(group, jnp.where(number < ends[-1], start, num_rows), used)


def _padded(rows: Array, size: int) -> Array:
    """Return the rows with a block's zeros behind them, so that every block lies within."""
    return jnp.pad(rows, ((0, size), (0, 0)))


def _by_rows(product: Callable[[Array, Array], Array], rows: Array, weight: Array, sizes: Array, width: int) -> Array:
    """Return [rows, width]: the product of each block with its group's matrix, [embed, mlp] of [embed, groups, mlp]."""
    num_rows = len(rows)
    size, blocks = _blocks(sizes, num_rows)
    rows = _padded(rows, size)

    def put(out: Array, block: _Block) -> tuple[Array, None]:
        of_group = lax.dynamic_index_in_dim(weight, block.group, axis=1, keepdims=False)
        done = product(lax.dynamic_slice_in_dim(rows, block.start, size), of_group)
        return lax.dynamic_update_slice_in_dim(out, done, block.start, axis=0), None

    out: Array = lax.scan(put, jnp.zeros((num_rows + size, width), rows.dtype), blocks)[0]
    return out[:num_rows]
