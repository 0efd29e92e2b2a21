"""Attention of one chunk of queries to one chunk of keys, which is a part of all that the queries see.

`ring` joins the parts. Forward a tile gives its own output and the logarithm of its sum; backward it is given those of
all keys. What is here computes with matrix products, block by block; `splash_tiles` does the same on TPUs.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.job.kernels import Kernel
from shardwise.train.scores import MASKED, Scores, mixed, scores_of, step_of_softmax, visible
from shardwise.train.splash import BLOCK

Array = jax.Array
SMALLEST_BLOCK = 16
"""Positions: chunks that larger blocks do not divide are attended from at once."""


class How(NamedTuple):
    """How attention is computed."""

    kernel: Kernel
    """Which implementation; cuDNN has none for split sequences."""
    scores: Scores
    """The window, and the bound of scores."""
    wire: jnp.dtype
    """The dtype in which gradients of keys and values are summed over devices."""
    block: int = BLOCK
    """Positions that are computed at once where they divide a chunk, else the largest number below that does."""


class Tile(NamedTuple):
    """Queries and keys of one chunk each, of the same length."""

    q: Array
    """[batch, heads, chunk, head_size], already scaled."""
    k: Array
    """[batch, kv_heads, chunk, head_size]"""
    v: Array
    """[batch, kv_heads, chunk, value_size]"""
    of_queries: Array | None
    """int32 [batch, chunk]: their segments."""
    of_keys: Array | None
    ahead: Array
    """int32: how many positions the first query is after the first key."""
    diagonal: bool
    """Whether queries and keys are of the same positions; otherwise the queries are after the keys."""


class Found(NamedTuple):
    """What queries have found among some keys."""

    out: Array
    """[batch, heads, chunk, value_size]: the values by the softmax over these keys."""
    log_sum: Array
    """float32 [batch, heads, chunk, 1]: of the exponentials of their scores; `MASKED` or so where they see none."""


def attend_tile(how: How, in_window: Array | None, tile: Tile) -> Found:
    """Attend within a tile: `out` is float32, as `log_sum` is."""
    block = _block(how, tile)

    def visit(state: Any, at: Array) -> tuple[Any, None]:
        row, column = at * block
        part = _part(tile, row, column, block)
        old = jax.tree.map(lambda x: _slice(x, row, block), state)
        seen = _seen(how, in_window, tile, part)
        new = step_of_softmax(old, part.q, part.k, part.v, seen, how.scores.softcap)
        return jax.tree.map(lambda x, of_row: _put(x, of_row, row), state, new), None

    one = (*tile.q.shape[:3], 1)
    none = (jnp.full(one, MASKED), jnp.zeros(one), jnp.zeros(out_shape(tile.q, tile.v)))
    (top, total, out), _ = jax.lax.scan(visit, none, _visits(how, in_window, tile, block))
    return Found(out / total, top + jnp.log(total))


def out_shape(q: Array, v: Array) -> tuple[int, ...]:
    """Return the shape of what queries find: a head's values need not be as wide as its keys."""
    return (*q.shape[:-1], v.shape[-1])


def tile_gradients(
    how: How, in_window: Array | None, tile: Tile, found: Found, slope: Array
) -> tuple[Array, Array, Array]:
    """Return what a tile adds to the gradients of its queries, keys and values, in float32.

    Args:
        how: the kernel, and what becomes of the scores.
        in_window: bool: whether this layer has the window; None: it has.
        tile: the operands.
        found: among all keys, not only those of the tile.
        slope: the gradient of that output.

    """
    block = _block(how, tile)
    slope = slope.astype(jnp.float32)
    inner = (found.out.astype(jnp.float32) * slope).sum(-1, keepdims=True)

    def visit(sums: tuple[Array, Array, Array], at: Array) -> tuple[tuple[Array, Array, Array], None]:
        row, column = at * block
        part = _part(tile, row, column, block)
        seen = _seen(how, in_window, tile, part)
        log_sum, of_out, of_total = (_slice(x, row, block) for x in (found.log_sum, slope, inner))

        grads = block_gradients(how.scores.softcap, (part.q, part.k, part.v), seen, log_sum, of_out, of_total)
        of_q, of_k, of_v = (
            _put(x, _slice(x, start, block) + grad, start)
            for x, grad, start in zip(sums, grads, (row, column, column), strict=True)
        )
        return (of_q, of_k, of_v), None

    none = (jnp.zeros(tile.q.shape), jnp.zeros(tile.k.shape), jnp.zeros(tile.v.shape))
    sums, _ = jax.lax.scan(visit, none, _visits(how, in_window, tile, block))
    return sums


def block_gradients(
    softcap: float | None,
    operands: tuple[Array, Array, Array],
    seen: Array,
    log_sum: Array,
    slope: Array,
    inner: Array,
) -> tuple[Array, Array, Array]:
    """Return what a block of queries and keys adds to the gradients of its queries, keys and values.

    Args:
        softcap: the bound of the scores.
        operands: queries, keys and values of the block.
        seen: which keys the queries see.
        log_sum: of the queries, among all keys.
        slope: float32: the gradient of their output.
        inner: float32 [..., query, 1]: the sum of slope times output.

    """

    # Its gradients at these slopes are the softmax's: the sum's own are what normalising adds.
    def weighted(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        weights = jnp.exp(jnp.where(seen, scores_of(q, k, softcap), MASKED) - log_sum)
        return mixed(weights, v, jnp.dtype(jnp.float32)), weights.sum(-1, keepdims=True)

    _, pull = jax.vjp(weighted, *operands)
    of_q, of_k, of_v = pull((slope, -inner))
    return of_q, of_k, of_v


def _block(how: How, tile: Tile) -> int:
    """Return how many positions are computed at once."""
    chunk = tile.q.shape[2]
    block = math.gcd(how.block, chunk)
    return block if how.kernel == "blockwise" and block >= SMALLEST_BLOCK else chunk


def _visits(how: How, in_window: Array | None, tile: Tile, block: int) -> Array:
    """Return the blocks that are computed: [visit, row and column]; not those that no query of a row sees."""
    rows, window = range(tile.q.shape[2] // block), how.scores.window
    seen = [(row, column) for row in rows for column in rows if column <= row or not tile.diagonal]
    if tile.diagonal and window is not None and in_window is None:
        seen = [(row, column) for row, column in seen if (row - column - 1) * block + 1 < window]
    return jnp.asarray(seen, jnp.int32)


def _part(tile: Tile, row: Array, column: Array, block: int) -> Tile:
    """Return a block of a tile."""
    of_queries, of_keys = (
        None if x is None else jax.lax.dynamic_slice_in_dim(x, start, block, 1)
        for x, start in ((tile.of_queries, row), (tile.of_keys, column))
    )
    q, k, v = _slice(tile.q, row, block), _slice(tile.k, column, block), _slice(tile.v, column, block)
    return Tile(q, k, v, of_queries, of_keys, tile.ahead + row - column, tile.diagonal)


def _seen(how: How, in_window: Array | None, tile: Tile, part: Tile) -> Array:
    """Return which keys the queries of a block see: [1 or batch, 1, query, key] or, if nothing says no, one value."""
    block, window = part.q.shape[2], how.scores.window
    seen = jnp.array(True)
    if tile.diagonal or window is not None:
        # A window that is as long as what lies between the two hides nothing.
        reach = how.scores._replace(in_window=in_window).reach(np.iinfo(np.int32).max)
        seen = visible(part.ahead + jnp.arange(block), jnp.arange(block), reach)
    if part.of_queries is not None and part.of_keys is not None:
        seen = seen & (part.of_queries[:, None, :, None] == part.of_keys[:, None, None, :])
    return seen


def _slice(x: Array, start: Array, block: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(x, start, block, 2)


def _put(x: Array, part: Array, start: Array) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(x, part, start, 2)
