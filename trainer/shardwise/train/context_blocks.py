"""Blockwise attention of a device's two chunks of queries to the keys of whole sequences, for `context`.

The backward pass is written out: derived, it would keep the scores of all blocks, which together are the square of the
positions. Source: Rabe and Staats, "Self-attention does not need O(n^2) memory" (2021).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shardwise.train.scores import MASKED, step_of_softmax, visible
from shardwise.train.sinks import joined, sink_gradients
from shardwise.train.tiles import block_gradients, out_shape

Array = jax.Array
_Both = tuple[Array, Array]
"""Of a block of the first chunk, and of one of the second."""


class Sequence(NamedTuple):
    """What one device attends to: whole sequences, in their own order."""

    keys: Array
    values: Array
    own_segments: Array | None
    """int32 [batch, position], of the device's queries."""
    segments: Array | None
    """The same, of all keys."""
    window: Array | int | None


def ways() -> int:
    """Return over how many devices a sequence is split."""
    return int(jax.lax.axis_size("context"))


def chunks() -> tuple[Array, Array]:
    """Return the numbers of this device's two chunks."""
    own = jax.lax.axis_index("context")
    return own, 2 * ways() - 1 - own


_Kept = tuple[_Both, Sequence, _Both, _Both, Array | None]


def attend_blockwise(q: Array, whole: Sequence, softcap: float | None, block: int, sinks: Array | None = None) -> Array:
    """Attend block by block; a block of queries visits only the blocks of keys that are not after it.

    Row r of the first chunk has as many blocks fewer than the average as row r of the second has more. So the two
    together are one loop, as long on every device.
    """
    size = q.shape[2] // 2
    parts = [(q[:, :, at : at + block], q[:, :, size + at : size + at + block]) for at in range(0, size, block)]
    pairs = [_attend_pair(row, size // block, softcap, *part, whole, sinks) for row, part in enumerate(parts)]
    return jnp.concatenate([out for side in zip(*pairs, strict=True) for out in side], axis=2)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _attend_pair(
    row: int, rows: int, softcap: float | None, first: Array, second: Array, whole: Sequence, sinks: Array | None
) -> tuple[Array, Array]:
    """Attend from this row of blocks, out of so many, of both chunks: [batch, heads, block, value_size] each."""
    return _pair_forward(row, rows, softcap, first, second, whole, sinks)[0]


def _pair_forward(
    row: int, rows: int, softcap: float | None, first: Array, second: Array, whole: Sequence, sinks: Array | None
) -> tuple[_Both, _Kept]:
    def visit(carry: tuple[Any, Any], step: Array) -> tuple[tuple[Any, Any], None]:
        state, done = carry
        here = _visit(row, rows, step, first.shape[2], whole)
        q = here.pick(first, second)
        fresh = jax.tree.map(lambda old, new: jnp.where(here.begins, new, old), state, _empty(q, whole))
        state = step_of_softmax(fresh, q, here.keys, here.values, here.seen, softcap)
        return (state, jax.tree.map(lambda new, old: jnp.where(here.ends, new, old), state, done)), None

    begin = (_empty(first, whole), _empty(first, whole))
    states = jax.lax.scan(visit, begin, jnp.arange(_num_visits(row, rows)))[0]
    of_second, of_first = states  # whose visits come last
    one, other = (out / total for _, total, out in (of_first, of_second))
    of_one, of_other = (top + jnp.log(total) for top, total, _ in (of_first, of_second))
    (one, of_one), (other, of_other) = joined(sinks, one, of_one), joined(sinks, other, of_other)
    one, other = one.astype(first.dtype), other.astype(first.dtype)
    return (one, other), ((first, second), whole, (one, other), (of_one, of_other), sinks)


def _pair_backward(
    row: int, rows: int, softcap: float | None, kept: _Kept, slopes: _Both
) -> tuple[Array, Array, Sequence, Array | None]:
    queries, whole, outs, log_sums, sinks = kept
    slopes = slopes[0].astype(jnp.float32), slopes[1].astype(jnp.float32)
    inner = [(out.astype(jnp.float32) * slope).sum(-1, keepdims=True) for out, slope in zip(outs, slopes, strict=True)]

    def visit(sums: tuple[Array, ...], step: Array) -> tuple[tuple[Array, ...], None]:
        here = _visit(row, rows, step, queries[0].shape[2], whole)
        q, log_sum, slope, product = (here.pick(*pair) for pair in (queries, log_sums, slopes, inner))
        operands = q, here.keys, here.values
        of_q, *of_keys = block_gradients(softcap, operands, here.seen, log_sum, slope, product)
        of_first, of_second = (jnp.where(mine, of_q, 0) for mine in (here.in_front, ~here.in_front))
        adds = (jax.lax.dynamic_slice_in_dim(x, here.start, q.shape[2], 2) for x in sums[2:])
        placed = (
            jax.lax.dynamic_update_slice_in_dim(x, old + new, here.start, 2)
            for x, old, new in zip(sums[2:], adds, of_keys, strict=True)
        )
        return (sums[0] + of_first, sums[1] + of_second, *placed), None

    like = (*queries, whole.keys, whole.values)
    nothing = tuple(jnp.zeros(x.shape) for x in like)
    sums = jax.lax.scan(visit, nothing, jnp.arange(_num_visits(row, rows)))[0]
    of_first, of_second, of_keys, of_values = (x.astype(old.dtype) for x, old in zip(sums, like, strict=True))
    of_chunks = (sink_gradients(sinks, *one) for one in zip(outs, log_sums, slopes, strict=True))
    of_sinks = None if sinks is None else jax.tree.reduce(jnp.add, [*of_chunks])
    return of_first, of_second, Sequence(of_keys, of_values, None, None, None), of_sinks


_attend_pair.defvjp(_pair_forward, _pair_backward)


class _Visit(NamedTuple):
    """One block of queries and one of keys."""

    in_front: Array
    """Whether the queries are of the device's first chunk."""
    begins: Array
    """Whether it is the first visit of these queries: to their own block, where each sees itself."""
    ends: Array
    """Whether it is the last of the first chunk."""
    start: Array
    """int32: the keys' first position."""
    keys: Array
    values: Array
    seen: Array
    """Which of them each query sees."""

    def pick(self, first: Array, second: Array) -> Array:
        """Return what belongs to its queries, of the two chunks."""
        return jnp.where(self.in_front, first, second)


def _num_visits(row: int, rows: int) -> int:
    return (2 * ways() - 1) * rows + 2 * (row + 1)


def _visit(row: int, rows: int, step: Array, block: int, whole: Sequence) -> _Visit:
    front, back = (chunk * rows + row for chunk in chunks())  # numbers of the two blocks in the sequence
    in_front = step <= front
    turn = jnp.where(in_front, step, step - front - 1)
    at = jnp.where(in_front, front, back)
    # The diagonal block first: every query sees itself there, so it has a true maximum before a masked block.
    to = jnp.where(turn == 0, at, turn - 1)
    seen = visible(at * block + jnp.arange(block), to * block + jnp.arange(block), whole.window)
    if whole.own_segments is not None and whole.segments is not None:
        begins = jnp.where(in_front, row, rows + row) * block
        own = jax.lax.dynamic_slice_in_dim(whole.own_segments, begins, block, 1)
        of_key = jax.lax.dynamic_slice_in_dim(whole.segments, to * block, block, 1)
        seen = seen & (own[:, None, :, None] == of_key[:, None, None, :])
    keys, values = (jax.lax.dynamic_slice_in_dim(x, to * block, block, 2) for x in (whole.keys, whole.values))
    return _Visit(in_front, turn == 0, step == front, to * block, keys, values, seen)


def _empty(q: Array, whole: Sequence) -> tuple[Array, Array, Array]:
    """Return the maximum, the sum and the output of no keys yet."""
    one = (*q.shape[:3], 1)
    return jnp.full(one, MASKED), jnp.zeros(one), jnp.zeros(out_shape(q, whole.values))
