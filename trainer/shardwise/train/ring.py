"""Attention of sequences split over `context` whose keys and values are passed around a ring, device by device.

Each device has two chunks of a sequence (`zigzag`), and passes on their keys and values while it attends to those that
it has: after as many turns as there are devices it has seen them all, and never held more than two devices' parts. What
a query sees is folded in part by part, by its logarithm of the sum (Liu et al., "Ring Attention with Blockwise
Transformers for Near-Infinite Context", 2023). The backward pass sends keys and values around again, and behind them
the gradients that each device adds to, until they are home.

With chunks from both ends every turn has the same work on each device: its last chunk sees the first chunk of any
device, and one of its chunks sees that of the same end. Nothing that no query sees is computed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from shardwise.train import splash_tiles, tiles
from shardwise.train.mesh import on_cpu
from shardwise.train.scores import MASKED
from shardwise.train.sinks import joined, sink_gradients
from shardwise.train.tiles import Found, How, Tile

T = TypeVar("T")
Array = jax.Array
_FRONT, _BACK = 0, 1  # the two chunks of a device
_Sums = tuple[Array, Array, Array]
_Slopes = list[Array]
"""Gradients of keys and of values; empty where there are none yet."""


class Part(NamedTuple):
    """What one device has of a sequence's keys, in its two chunks."""

    keys: Array
    """[batch, kv_heads, 2, chunk, head_size]"""
    values: Array
    segments: Array | None
    """int32 [batch, 2, chunk]"""


class _Pair(NamedTuple):
    """A chunk of a device's queries, and one of the keys that have come to it."""

    queries: Array | int
    keys: Array | int
    diagonal: bool
    """Whether they are of the same positions; otherwise the queries are after the keys."""


def attend_in_ring(
    how: How,
    in_window: Array | None,
    q: Array,
    k: Array,
    v: Array,
    segments: Array | None,
    sinks: Array | None = None,
) -> Array:
    """Attend from one device's queries to the keys of all devices of `context`; inside a shard_map.

    Args:
        how: the kernel, and what becomes of the scores.
        in_window: bool: whether this layer has the window; None: it has.
        q: [batch, heads, position, head_size], of the device's two chunks, already scaled.
        k: [batch, kv_heads, position, head_size], likewise.
        v: [batch, kv_heads, position, value_size], likewise.
        segments: int32 [batch, position] or None, likewise.
        sinks: float32 [heads] or None: a logit that joins each softmax.

    Returns:
        [batch, heads, position, value_size] in the inputs' dtype.

    """
    rows = None if segments is None else _halved(segments, 1)
    out = _attend(how, in_window, _halved(q, 2), Part(_halved(k, 2), _halved(v, 2), rows), sinks)
    return out.reshape(tiles.out_shape(q, v))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how: How, in_window: Array | None, q: Array, own: Part, sinks: Array | None) -> Array:
    return _forward(how, in_window, q, own, sinks)[0]


def _forward(how: How, in_window: Array | None, q: Array, own: Part, sinks: Array | None) -> tuple[Array, Any]:
    attend = splash_tiles.attend_tile if how.kernel == "splash" else tiles.attend_tile

    def visit(found: Found, here: Part, turn: Array | int) -> Found:
        for pair in _pairs(turn):
            tile = _tile(q, own, here, pair, turn)

            def seen(found: Found, pair: _Pair = pair, tile: Tile = tile) -> Found:
                old = _at(found, pair.queries)
                return _with(found, pair.queries, _merged(old, attend(how, in_window, tile)))

            found = _if_in_reach(how, in_window, tile, seen, found)
        return found

    nothing = Found(jnp.zeros(tiles.out_shape(q, own.values), jnp.float32), jnp.full((*q.shape[:-1], 1), MASKED))
    found: Found = Found(*joined(sinks, *_around(visit, nothing, own, apart=1)))
    out = found.out.astype(q.dtype)
    return out, (in_window, q, own, Found(out, found.log_sum), sinks)


def _backward(how: How, kept: Any, slope: Array) -> tuple[None, Array, Part, Array | None]:
    *_, q, own, found, sinks = kept

    def visit(state: tuple[Array, _Slopes, _Slopes], here: Part, turn: Array | int) -> tuple[Array, _Slopes, _Slopes]:
        of_q, of_own, of_others = state
        # Sent before anything is computed, as the keys are, so that it can happen beside.
        come = _passed(of_others)
        of_q, of_k, of_v = _add_gradients(how, kept, slope, here, turn, of_q)
        if isinstance(turn, int) and turn == 0:
            return of_q, [of_k, of_v], []
        sums = [of_k, of_v]
        if come:  # nothing has in turn 1
            sums = [old.astype(jnp.float32) + new for old, new in zip(come, sums, strict=True)]
        return of_q, of_own, [part.astype(how.wire) for part in sums]

    of_q, of_own, of_others = _around(visit, (jnp.zeros(q.shape, jnp.float32), [], []), own, apart=2)
    pairs = zip(of_own, _passed(of_others), strict=True)
    of_k, of_v = ((here + home.astype(jnp.float32)).astype(q.dtype) for here, home in pairs)
    return None, of_q.astype(q.dtype), Part(of_k, of_v, None), sink_gradients(sinks, found.out, found.log_sum, slope)


def _add_gradients(
    how: How, kept: Any, slope: Array, here: Part, turn: Array | int, of_q: Array
) -> tuple[Array, Array, Array]:
    """Add to the gradient of a device's queries what this turn does, and return those of the keys and values here."""
    in_window, q, own, found, _ = kept
    gradients = splash_tiles.tile_gradients if how.kernel == "splash" else tiles.tile_gradients
    sums = (of_q, jnp.zeros(here.keys.shape, jnp.float32), jnp.zeros(here.values.shape, jnp.float32))
    for pair in _pairs(turn):
        tile = _tile(q, own, here, pair, turn)

        def seen(sums: _Sums, pair: _Pair = pair, tile: Tile = tile) -> _Sums:
            adds = gradients(how, in_window, tile, _at(found, pair.queries), _at(slope, pair.queries))
            halves = (pair.queries, pair.keys, pair.keys)
            of_q, of_k, of_v = (
                _with(x, half, _at(x, half) + add) for x, half, add in zip(sums, halves, adds, strict=True)
            )
            return of_q, of_k, of_v

        sums = _if_in_reach(how, in_window, tile, seen, sums)
    return sums


_attend.defvjp(_forward, _backward)


def _around(visit: Callable[..., Any], state: Any, own: Part, *, apart: int) -> Any:
    """Fold `visit(state, part, turn)` over the parts of all devices, a device's own in turn 0.

    The first `apart` turns, and the last, are written out; a loop has the others. Each sends a part on before it
    computes with it, and nothing is sent in the last one. On CPUs all are written out, since a program that was kept
    has lost the order between the transfers inside of a loop and those outside.
    """

    def take(carry: tuple[Any, Part], turn: Array | int) -> tuple[tuple[Any, Part], None]:
        state, here = carry
        coming = _passed(here)
        return (visit(state, here, turn), coming), None

    last, carry = _ways() - 1, (state, own)
    for turn in range(min(apart, last)):
        carry, _ = take(carry, turn)
    if apart < last:
        carry, _ = jax.lax.scan(take, carry, jnp.arange(apart, last), unroll=on_cpu())
    return visit(*carry, last)


def _passed(tree: Any) -> Any:
    """Send to the next device, and receive from the one before."""
    ways = _ways()
    return jax.lax.ppermute(tree, "context", [(device, (device + 1) % ways) for device in range(ways)])


def _pairs(turn: Array | int) -> list[_Pair]:
    """Return which chunks of queries see which of the keys that are here in this turn."""
    if isinstance(turn, int) and turn == 0:
        return [_Pair(_FRONT, _FRONT, True), _Pair(_BACK, _BACK, True), _Pair(_BACK, _FRONT, False)]
    own = jax.lax.axis_index("context")
    end = jnp.where(_owner(turn) < own, _FRONT, _BACK)
    return [_Pair(_BACK, _FRONT, False), _Pair(end, end, False)]


def _tile(q: Array, own: Part, here: Part, pair: _Pair, turn: Array | int) -> Tile:
    chunk = q.shape[3]
    first = _chunk(jax.lax.axis_index("context"), pair.queries) - _chunk(_owner(turn), pair.keys)
    segments = None if own.segments is None else _at(own.segments, pair.queries, 1)
    there = None if here.segments is None else _at(here.segments, pair.keys, 1)
    keys, values = _at(here.keys, pair.keys), _at(here.values, pair.keys)
    return Tile(_at(q, pair.queries), keys, values, segments, there, first * chunk, pair.diagonal)


def _if_in_reach(how: How, in_window: Array | None, tile: Tile, seen: Callable[[T], T], state: T) -> T:
    """Compute with a tile if the window of any query reaches a key."""
    chunk = tile.q.shape[2]
    reach = how.scores._replace(in_window=in_window).reach(2 * _ways() * chunk)
    if reach is None:
        return seen(state)
    computed: T = jax.lax.cond(tile.ahead - chunk + 1 >= reach, lambda state: state, seen, state)
    return computed


def _merged(one: Found, other: Found) -> Found:
    """Merge two partial attention results; a part with no visible key adds nothing."""
    log_sum = jnp.logaddexp(one.log_sum, other.log_sum)
    shares = [jnp.exp(found.log_sum - log_sum) for found in (one, other)]
    # Not a product alone: a kernel divides by zero where it has skipped all keys of a query.
    weighted = [jnp.where(share > 0, share * found.out, 0) for share, found in zip(shares, (one, other), strict=True)]
    return Found(weighted[0] + weighted[1], log_sum)


def _owner(turn: Array | int) -> Array:
    """Return the device whose part is here in this turn."""
    return (jax.lax.axis_index("context") - turn) % _ways()


def _chunk(device: Array, half: Array | int) -> Array:
    """Return the number of a device's chunk in the sequence."""
    return jnp.where(half == _FRONT, device, 2 * _ways() - 1 - device)


def _ways() -> int:
    return int(jax.lax.axis_size("context"))


def _halved(x: Array, axis: int) -> Array:
    return x.reshape(*x.shape[:axis], 2, -1, *x.shape[axis + 1 :])


def _at(tree: Any, half: Array | int, axis: int = 2) -> Any:
    """Return the part of one chunk."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, half, axis, keepdims=False), tree)


def _with(tree: T, half: Array | int, part: T) -> T:
    """Replace the part of one chunk."""
    replaced: T = jax.tree.map(lambda x, new: jax.lax.dynamic_update_index_in_dim(x, new, half, 2), tree, part)
    return replaced
