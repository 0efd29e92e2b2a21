"""Causal self-attention of sequences that are split over `context`, each device with its chunks of `zigzag`.

The job says how keys and values travel. Around a ring: see `ring`. Or, as here, a device gathers those of whole
sequences and attends from its own queries; their gradients are scattered back. Blocks that come after all queries are
not computed, and all devices have equally many. Shared heads make keys and values small beside queries, which is why
they travel (Llama Team, "The Llama 3 Herd of Models", 2024).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout as InMemory
from jax.experimental.layout import with_layout_constraint
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardwise.job.spec.training import ContextStrategy
from shardwise.train.collectives import gather_over, scatter_over
from shardwise.train.context_blocks import Sequence, attend_blockwise, chunks, ways
from shardwise.train.fsdp import fold
from shardwise.train.mesh import DATA, on_each_device
from shardwise.train.products import GATHERED
from shardwise.train.ring import attend_in_ring
from shardwise.train.scores import softmax_weighted, visible
from shardwise.train.sinks import over_sequences
from shardwise.train.splash import BLOCK, splash_kernel
from shardwise.train.tiles import SMALLEST_BLOCK, How
from shardwise.train.zigzag import straight, zigzag

Array = jax.Array
_HEADS, _ROWS = P(DATA, "tensor", "context"), P(DATA, "context")


def attend_over_context(
    q: Array,
    k: Array,
    v: Array,
    segments: Array | None,
    *,
    how: How,
    strategy: ContextStrategy,
    sinks: Array | None = None,
) -> Array:
    """Do what `attention.attend` does, on positions in the order of `zigzag`.

    Args:
        q: [batch, heads, position, head_size], already scaled; positions over context.
        k: [batch, kv_heads, position, head_size], likewise.
        v: [batch, kv_heads, position, value_size], likewise.
        segments: int32 [batch, position] or None, likewise.
        how: the kernel, and what becomes of the scores.
        strategy: how keys and values travel.
        sinks: float32 [heads] or None: a logit that joins each softmax and stands for no value.

    Returns:
        [batch, heads, position, value_size] in the inputs' dtype, likewise.

    """
    kernel, scores, wire = how.kernel, how.scores, how.wire
    rows = None if segments is None else _ROWS
    ins = (
        None if scores.in_window is None else P(),
        _HEADS,
        _HEADS,
        _HEADS,
        rows,
        None if sinks is None else P("tensor"),
    )
    if strategy == "ring":
        static = how._replace(scores=scores._replace(in_window=None))
        return on_each_device(partial(attend_in_ring, static), ins, _HEADS)(scores.in_window, q, k, v, segments, sinks)
    sizes = jax.sharding.get_abstract_mesh().shape
    length = q.shape[2]
    made: list[Any] = []
    if kernel == "splash":
        make = partial(splash_kernel, q.shape[1] // sizes["tensor"], length, ways=sizes["context"])
        windows = (scores.window,) if scores.in_window is None else (scores.window, None)
        made = [make(window=window, softcap=scores.softcap) for window in windows]

    def local(
        made: list[Any],
        in_window: Array | None,
        q: Array,
        k: Array,
        v: Array,
        segments: Array | None,
        sinks: Array | None,
    ) -> Array:
        here = scores._replace(in_window=in_window)
        whole = _gather(k, v, segments, here.reach(length), wire)
        if kernel == "splash":
            return here.windowed(
                lambda window: partial(_splash, made[0 if window == scores.window else 1]), sinks, q, whole
            )
        if kernel == "blockwise" and (block := math.gcd(BLOCK, q.shape[2] // 2)) >= SMALLEST_BLOCK:
            return attend_blockwise(q, whole, scores.softcap, block, sinks)
        seen = visible(_places(q.shape[2]), jnp.arange(whole.keys.shape[2]), whole.window)
        return softmax_weighted(q, whole.keys, whole.values, _within(seen, whole), scores.softcap, sinks)

    # Of a mesh of its own: the one in use may have axes that a surrounding shard_map has made manual.
    mesh = jax.sharding.AbstractMesh((sizes["context"],), ("context",))
    by_queries = NamedSharding(mesh, P(None, "context"))
    specs = [one.manual_sharding_spec(by_queries) for one in made]
    attended: Callable[..., Array] = on_each_device(local, (specs, *ins), _HEADS)
    return attended(made, scores.in_window, q, k, v, segments, sinks)


def _gather(k: Array, v: Array, segments: Array | None, window: Array | int | None, wire: jnp.dtype) -> Sequence:
    """Gather what a device's queries may see."""
    keys, values = (checkpoint_name(_whole(wire, x), GATHERED) for x in (k, v))
    rows = None if segments is None else straight(gather_over("context", segments, dimension=1), ways(), axis=1)
    return Sequence(keys, values, segments, rows, window)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _whole(_wire: jnp.dtype, part: Array) -> Array:
    """Gather keys or values [batch, kv_heads, position, head_size] of all devices, in the sequence's order."""
    return straight(gather_over("context", part, dimension=2), ways(), axis=2)


def _forward(wire: jnp.dtype, part: Array) -> tuple[Array, None]:
    return _whole(wire, part), None


def _backward(wire: jnp.dtype, _: None, grad: Array) -> tuple[Array]:
    # Positions come first, and lie so in memory: otherwise a TPU would sum the whole on every chip.
    by_position = zigzag(jnp.moveaxis(grad, 2, 0), ways()).astype(wire)
    rows = fold(by_position.reshape(grad.shape[2], -1), ways())
    part = scatter_over("context", with_layout_constraint(rows, InMemory((0, 1))), wire, dimension=0)
    shape = (-1, *by_position.shape[1:])
    return (jnp.moveaxis(part.reshape(shape), 0, 2).astype(grad.dtype),)


_whole.defvjp(_forward, _backward)


def _places(num_queries: int) -> Array:
    """Return the positions of this device's queries in their sequence."""
    size = num_queries // 2
    return jnp.concatenate([chunk * size + jnp.arange(size) for chunk in chunks()])


def _within(seen: Array, whole: Sequence) -> Array:
    """Leave out keys of other segments: [1 or batch, 1, query, key]."""
    if whole.own_segments is None or whole.segments is None:
        return seen
    return seen & (whole.own_segments[:, None, :, None] == whole.segments[:, None, None, :])


def _splash(kernel: Any, sinks: Array | None, q: Array, whole: Sequence) -> Array:
    """Call the Pallas kernel for TPUs on one device's queries."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels  # noqa: PLC0415

    rows = None
    if whole.own_segments is not None and whole.segments is not None:
        rows = kernels.SegmentIds(whole.own_segments, whole.segments)
    return over_sequences(kernel, sinks, q, whole.keys, whole.values, rows)
