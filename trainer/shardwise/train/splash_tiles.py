"""The tiles of `tiles`, computed by the Pallas kernel for TPUs that ships with JAX.

Forward its public kernel returns the logarithms of the sums. Its own backward pass would use those of the tile; the one
underneath takes them as an argument, and is JAX's private part (`jax_private`).
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from shardwise.train.jax_private import splash_gradients
from shardwise.train.splash import block_of, square_blocks
from shardwise.train.tiles import Found, How, Tile

T = TypeVar("T")
Array = jax.Array


def attend_tile(how: How, in_window: Array | None, tile: Tile) -> Found:
    """Attend within a tile: `out` and `log_sum` are float32; a query of which all keys are skipped has no number."""

    def attended(window: int | None) -> tuple[Array, Array]:
        kernel = tile_kernel(tile, window, how.scores.softcap)
        out, (log_sum,) = jax.vmap(kernel)(tile.q, tile.k, tile.v, _segments(tile))
        return out, log_sum

    out, log_sum = _by_window(how, in_window, attended)
    return Found(out.astype(jnp.float32), log_sum[..., None])


def tile_gradients(
    how: How, in_window: Array | None, tile: Tile, found: Found, slope: Array
) -> tuple[Array, Array, Array]:
    """Return what `tiles.tile_gradients` does; each is rounded to the operands' dtype before it is made float32."""

    def pulled(window: int | None) -> tuple[Array, ...]:
        kernel = tile_kernel(tile, window, how.scores.softcap)

        def one(q: Array, k: Array, v: Array, rows: Any, out: Array, log_sum: Array, slope: Array) -> Any:
            return splash_gradients(kernel, (q, k, v, rows), out, log_sum, slope)

        operands = (tile.q, tile.k, tile.v, _segments(tile), found.out, found.log_sum[..., 0], slope)
        grads: tuple[Array, ...] = jax.vmap(one)(*operands)
        return grads

    of_q, of_k, of_v = (grad.astype(jnp.float32) for grad in _by_window(how, in_window, pulled))
    return of_q, of_k, of_v


def tile_kernel(tile: Tile, window: int | None, softcap: float | None, *, interpret: bool = False) -> Any:
    """Return the kernel for one sequence of a tile; its tables say which blocks are seen, wherever the tile lies."""
    # Imported here: it takes half a second, which no other kernel should pay.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels  # noqa: PLC0415
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as infos  # noqa: PLC0415

    chunk = tile.q.shape[2]
    size = block_of(chunk)
    by_keys = by_queries = infos.MaskInfo(None, None, None, None, None)
    if has_mask := tile.diagonal or window is not None:
        seen = _seen_blocks(tile.ahead, chunk, size, window)
        positions: Any = tile.ahead + jnp.arange(chunk, dtype=jnp.int32)
        table = seen.astype(jnp.int32)[None]
        by_keys = infos.MaskInfo(_nearest(seen)[None], None, table, None, positions)
        by_queries = infos.MaskInfo(_nearest(seen.T).T[None], None, table, None, positions)
    return kernels.SplashAttentionKernel(
        by_keys,
        by_keys,
        by_queries,
        block_sizes=square_blocks(size),
        is_mqa=False,
        save_residuals=True,
        mask_value=kernels.DEFAULT_MASK_VALUE,
        attn_logits_soft_cap=softcap,
        residual_checkpoint_name=None,
        mask_function=_mask_function(window) if has_mask else None,
        interpret=interpret,
    )


def _seen_blocks(ahead: Array, chunk: int, size: int, window: int | None) -> Array:
    """Return of which blocks anything is seen: bool [block of queries, block of keys]."""
    starts = jnp.arange(0, chunk, size)
    distance = ahead + starts[:, None] - starts[None, :]  # from a block's first key to its first query
    seen = distance + size > 0
    return seen if window is None else seen & (distance - size < window - 1)


def _nearest(seen: Array) -> Array:
    """Return the block that is fetched for each: itself or, since none is fetched twice, a seen one of its row."""
    number = seen.shape[1]
    first, last = jnp.argmax(seen, axis=1), number - 1 - jnp.argmax(seen[:, ::-1], axis=1)
    return jnp.clip(jnp.arange(number), first[:, None], last[:, None]).astype(jnp.int32)


@cache
def _mask_function(window: int | None) -> Callable[[Array, Array], Array]:
    """Return which keys are seen; one for all that ask, since the kernel is traced anew for another."""

    def seen(at: Array, to: Array) -> Array:
        causal = at >= to
        return causal if window is None else causal & (at - to < window)

    return seen


def _by_window(how: How, in_window: Array | None, attended: Callable[[int | None], T]) -> T:
    """Call it with the window, or with none in a layer without it."""
    window = how.scores.window
    if window is None or in_window is None:
        return attended(window)
    result: T = jax.lax.cond(in_window, partial(attended, window), partial(attended, None))
    return result


def _segments(tile: Tile) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels  # noqa: PLC0415

    if tile.of_queries is None or tile.of_keys is None:
        return None
    return kernels.SegmentIds(tile.of_queries, tile.of_keys)
