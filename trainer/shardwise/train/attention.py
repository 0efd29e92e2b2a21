"""Causal self-attention over arrays: the plain form, blockwise, Pallas splash (TPU) and cuDNN (GPU).

All compute the same: scores are float32 from the product to the softmax, whatever the inputs are. Arrays are split over
batch and heads. Attention weights have no dropout, since the kernels have none; the job file offers none.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from shardwise.job.kernels import Kernel
from shardwise.train.mesh import DATA, on_each_device
from shardwise.train.scores import Scores, mask_of, scores_of, weighted_by
from shardwise.train.sinks import joined, over_sequences, sink_gradients
from shardwise.train.splash import BLOCK, splash_kernel
from shardwise.train.tiles import Found, How, Tile, attend_tile, tile_gradients

Array = jax.Array
_PLAINLY = Scores()


def attend(
    q: Array,
    k: Array,
    v: Array,
    segments: Array | None,
    *,
    kernel: Kernel,
    scores: Scores = _PLAINLY,
    sinks: Array | None = None,
) -> Array:
    """Return softmax(q k^T, causal, within a segment) v.

    Args:
        q: [batch, heads, position, head_size], already scaled.
        k: [batch, kv_heads, position, head_size]; each of its heads is for heads / kv_heads neighbouring ones of q.
        v: [batch, kv_heads, position, value_size], mostly as wide as k; cuDNN takes no other.
        segments: int32 [batch, position] or None; a query sees only keys of its own segment.
        kernel: which implementation.
        scores: the window, and the bound of scores.
        sinks: float32 [heads] or None: a logit that joins each softmax and stands for no value; cuDNN takes none.

    Returns:
        [batch, heads, position, value_size] in the inputs' dtype.

    """
    match kernel:
        case "plain":
            return plain(q, k, v, segments, scores=scores, sinks=sinks)
        case "blockwise":
            return blockwise(q, k, v, segments, scores=scores, sinks=sinks)
        case "splash":
            return splash(q, k, v, segments, scores=scores, sinks=sinks)
        case "cudnn":
            assert sinks is None, "the job's rules check it"
            return cudnn(q, k, v, segments, scores=scores)


def plain(
    q: Array,
    k: Array,
    v: Array,
    segments: Array | None,
    *,
    scores: Scores = _PLAINLY,
    sinks: Array | None = None,
) -> Array:
    """Compute all scores at once: the reference, and the fastest for short sequences."""
    found = scores_of(q, k, scores.softcap)
    return weighted_by(found, mask_of(q.shape[2], k.shape[2], 0, 0, segments, scores.reach(k.shape[2])), v, sinks)


def blockwise(
    q: Array,
    k: Array,
    v: Array,
    segments: Array | None,
    *,
    block: int = BLOCK,
    scores: Scores = _PLAINLY,
    sinks: Array | None = None,
) -> Array:
    """Compute block by block with a running maximum and sum: memory grows with the positions, not with their square.

    Rabe and Staats, "Self-attention does not need O(n^2) memory" (2021). A block of queries visits only the blocks of
    keys that are not after it nor, where all layers have a window, before what it reaches.
    """
    length = q.shape[2]
    if length <= block or (length % block and length < 2 * block):
        return plain(q, k, v, segments, scores=scores, sinks=sinks)
    # What fills the last block up comes after every query, so none sees it.
    fill = [(0, 0), (0, 0), (0, -length % block), (0, 0)]
    q, k, v = (jnp.pad(part, fill) for part in (q, k, v))
    segments = None if segments is None else jnp.pad(segments, fill[1:3])
    how = How("blockwise", scores._replace(in_window=None), q.dtype, block)
    return _by_blocks(how, scores.in_window, q, k, v, segments, sinks)[:, :, :length]


def splash(
    q: Array,
    k: Array,
    v: Array,
    segments: Array | None,
    *,
    scores: Scores = _PLAINLY,
    sinks: Array | None = None,
    interpret: bool = False,
) -> Array:
    """Call the Pallas kernel for TPUs that ships with JAX, on each device over its own batch and heads."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels  # noqa: PLC0415

    def local(
        scores: Scores, q: Array, k: Array, v: Array, segments: Array | None, sinks: Array | None = None
    ) -> Array:
        def attended(window: int | None) -> Callable[..., Array]:
            kernel = splash_kernel(q.shape[1], q.shape[2], window=window, softcap=scores.softcap, interpret=interpret)

            def of_rows(sinks: Array | None, q: Array, k: Array, v: Array, rows: Array | None) -> Array:
                ids = None if rows is None else kernels.SegmentIds(rows, rows)
                return over_sequences(kernel, sinks, q, k, v, ids)

            return of_rows

        return scores.windowed(attended, sinks, q, k, v, segments)

    return _on_each_device(local, scores, q, k, v, segments, sinks)


def cudnn(q: Array, k: Array, v: Array, segments: Array | None, *, scores: Scores = _PLAINLY) -> Array:
    """Call cuDNN's fused attention for GPUs, on each device over its own batch and heads; 16-bit inputs only."""
    swap = partial(jnp.swapaxes, axis1=1, axis2=2)
    fused = partial(jax.nn.dot_product_attention, scale=1.0, is_causal=True, implementation="cudnn")

    def local(scores: Scores, q: Array, k: Array, v: Array, segments: Array | None) -> Array:
        mask = None if segments is None else mask_of(q.shape[2], k.shape[2], 0, 0, segments)

        def attended(window: int | None) -> Callable[..., Array]:
            before = None if window is None else (window - 1, 0)
            return lambda q, k, v: swap(fused(swap(q), swap(k), swap(v), mask=mask, local_window_size=before))

        return scores.windowed(attended, q, k, v)

    return _on_each_device(local, scores, q, k, v, segments)


def _on_each_device(
    local: Callable[..., Array],
    scores: Scores,
    q: Array,
    k: Array,
    v: Array,
    segments: Array | None,
    sinks: Array | None = None,
) -> Array:
    """Run a kernel on each device over its own batch and heads."""
    # All axes manual: XLA's partitioner takes no kernel beside an axis that a surrounding shard_map has made manual.
    heads, rows = P(DATA, "tensor"), None if segments is None else P(DATA)

    def part(in_window: Array | None, *parts: Any) -> Array:
        return local(scores._replace(in_window=in_window), *parts)

    specs = (None if scores.in_window is None else P(), heads, heads, heads, rows)
    if sinks is None:
        return on_each_device(part, specs, heads)(scores.in_window, q, k, v, segments)
    return on_each_device(part, (*specs, P("tensor")), heads)(scores.in_window, q, k, v, segments, sinks)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _by_blocks(
    how: How, in_window: Array | None, q: Array, k: Array, v: Array, segments: Array | None, sinks: Array | None
) -> Array:
    return _forward(how, in_window, q, k, v, segments, sinks)[0]


_Kept = tuple[Array | None, Tile, Found, Array | None]


def _forward(
    how: How, in_window: Array | None, q: Array, k: Array, v: Array, segments: Array | None, sinks: Array | None
) -> tuple[Array, _Kept]:
    tile = Tile(q, k, v, segments, segments, jnp.int32(0), diagonal=True)
    out, log_sum = joined(sinks, *attend_tile(how, in_window, tile))
    found = Found(out.astype(q.dtype), log_sum)
    return found.out, (in_window, tile, found, sinks)


def _backward(how: How, kept: _Kept, slope: Array) -> tuple[None, Array, Array, Array, None, Array | None]:
    in_window, tile, found, sinks = kept
    # The scores are computed again: derived, the backward pass would keep those of all blocks, which are the square.
    of_q, of_k, of_v = (x.astype(tile.q.dtype) for x in tile_gradients(how, in_window, tile, found, slope))
    return None, of_q, of_k, of_v, None, sink_gradients(sinks, *found, slope)


_by_blocks.defvjp(_forward, _backward)
