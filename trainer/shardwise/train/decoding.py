"""The programs of generation, over a batch of sequences on whatever layout the parameters have.

Four programs: one makes the weights that the others read, cast and laid out once; one makes room for a batch; one takes
the beginnings of many sequences at once, beside those that go on; and one makes up to `BLOCK` tokens of each, the
choice of them included. So the host takes part once in a block, and the caches are written once in a block.
`shardwise.train.decoder` compiles and calls them.

The rows are split over replicas, and each makes its own: what crosses the slow network between slices is the tokens of
a block, once.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from shardwise.train.caches import Cache, Ring
from shardwise.train.decoding_arrays import (
    BLOCK,
    BY_ROW,
    NOTHING,
    Batch,
    Joining,
    Rows,
    Wishes,
    batch_of,
    cached_within,
    caches_of,
    num_slots,
    params_of,
    placed_batch,
    prepared,
    weights_of,
)
from shardwise.train.layout import Layout
from shardwise.train.model import Gpt
from shardwise.train.sampling import Settings, choose
from shardwise.train.state import Abstract, Program

Array = jax.Array
OF_ROWS = P("replica")


def lower_weights(program: Program, layout: Layout) -> jax.stages.Lowered:
    """Lower (params by path) -> the weights' arrays."""
    jitted = jax.jit(
        lambda params: jax.tree.leaves(prepared(program, params)),
        in_shardings=({path: x.sharding for path, x in params_of(program).items()},),
        out_shardings=jax.tree.leaves(layout.placed(weights_of(program))),
        compiler_options=program.compiler_options(runs_once=True),
    )
    return program.lower(jitted, params_of(program))


def lower_empty(program: Program, layout: Layout, num_rows: int) -> jax.stages.Lowered:
    """Lower () -> Batch, in which no row has begun."""
    jitted = jax.jit(
        lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), batch_of(program, num_rows)),
        out_shardings=placed_batch(program, layout),
        compiler_options=program.compiler_options(runs_once=True),
    )
    return program.lower(jitted)


def lower_window(program: Program, layout: Layout, num_rows: int, length: int) -> jax.stages.Lowered:
    """Lower (weights, Batch, Joining of `length` tokens) -> Batch; see `Gpt.first_logits`. The batch is donated."""
    cached = cached_within(program, layout)

    def window(weights: Gpt, batch: Batch, joining: Joining) -> Batch:
        logits, caches = weights.first_logits(joining.tokens, joining.start, num_slots(program), layout)
        joins = joining.joins[:, None]

        def joined(cache: Array, new: Array) -> Array:
            # What is new ends in the slot of the last token; the ring's newest slot is another one.
            turned = jnp.roll(new, joining.slot - (length - 1), axis=2)
            placed: Array = jax.lax.with_sharding_constraint(jnp.where(joins[..., None, None], turned, cache), cached)
            return placed

        logits = jax.lax.with_sharding_constraint(jnp.where(joins, logits, batch.logits), BY_ROW)
        return Batch(logits, jax.tree.map(joined, batch.caches, caches))

    number, count = Abstract((), jnp.int32), Abstract((num_rows,), jnp.int32)
    joining = Joining(Abstract((num_rows, length), jnp.int32), count, Abstract((num_rows,), jnp.bool_), number)
    return lower_with_weights(
        window,
        program,
        layout,
        (batch_of(program, num_rows), joining),
        (OF_ROWS, Joining(*(OF_ROWS,) * 3, P())),
        outs=OF_ROWS,
        places=placed_batch(program, layout),
    )


def lower_tokens(program: Program, layout: Layout, num_rows: int) -> jax.stages.Lowered:
    """Lower (weights, Batch, Rows, Wishes) -> (Batch, int32 [BLOCK, rows], bool [rows]); the batch is donated."""
    count, share = Abstract((num_rows,), jnp.int32), Abstract((num_rows,), jnp.float32)
    batch = batch_of(program, num_rows)
    rows = Rows(Abstract((), jnp.int32), count, count, Abstract((num_rows,), jnp.bool_))
    seeds = Abstract((num_rows, 2), jnp.uint32)
    wishes = Wishes(seeds, count, count, count, Settings(share, count, share))
    return lower_with_weights(
        partial(_tokens, program, layout),
        program,
        layout,
        (batch, rows, wishes),
        (OF_ROWS, Rows(P(), *(OF_ROWS,) * 3), OF_ROWS),
        outs=(OF_ROWS, P(None, "replica"), OF_ROWS),
        places=(placed_batch(program, layout), layout.replicated, layout.replicated),
    )


def lower_with_weights(
    function: Callable[..., Any],
    program: Program,
    layout: Layout,
    inputs: tuple[Any, ...],
    ins: tuple[Any, ...],
    *,
    outs: Any,
    places: Any,
) -> jax.stages.Lowered:
    """Lower a program over the weights. Other inputs are whole on every device, except a batch, which is donated.

    It takes the weights' arrays, in their order in the model. With several replicas it is manual over them: each runs
    the function on its own rows, and how often its loops turn is its own. Left to itself, XLA would let all replicas
    settle after each token whether there is another one.

    Args:
        function: (weights, *inputs) -> results.
        program: of the model.
        layout: of the weights.
        inputs: their shapes and dtypes, over all replicas.
        ins: what of the inputs is a replica's own.
        outs: what of the results is.
        places: the shardings of the results.

    """
    batch = placed_batch(program, layout)
    shardings = [batch if isinstance(x, Batch) else layout.replicated for x in inputs]
    weights, model = jax.tree.flatten(weights_of(program))
    placed = jax.tree.leaves(layout.placed(weights_of(program)))

    run: Callable[..., Any] = lambda weights, *inputs: function(jax.tree.unflatten(model, weights), *inputs)  # noqa: E731
    if layout.mesh.shape["replica"] > 1:  # XLA's partitioner refuses one of size 1
        run = jax.shard_map(run, in_specs=(P(), *ins), out_specs=outs, axis_names={"replica"}, check_vma=False)
    jitted = jax.jit(
        run,
        in_shardings=(tuple(placed), *shardings),
        out_shardings=places,
        donate_argnums=[1 + i for i, x in enumerate(inputs) if isinstance(x, Batch)],
        compiler_options=program.compiler_options(),
    )
    return program.lower(jitted, tuple(weights), *inputs)


class _Loop(NamedTuple):
    """What one token of all rows leaves for the next."""

    done: Array
    logits: Array
    recent: tuple[Cache, ...]
    rows: Rows
    made: Array
    broken: Array


def _tokens(
    program: Program, layout: Layout, weights: Gpt, batch: Batch, rows: Rows, wishes: Wishes
) -> tuple[Batch, Array, Array]:
    config, num_rows = program.config, rows.live.shape[0]
    random = _random(rows, wishes)

    def one(loop: _Loop) -> _Loop:
        rows, logits = loop.rows, loop.logits[:, : config.vocab_size]
        sound = _everywhere(jnp.isfinite(logits).all(-1))
        token = _everywhere(choose(jnp.where(sound[:, None], logits, 0), random[loop.done], wishes.settings))
        live = rows.live & sound
        made = loop.made.at[loop.done].set(jnp.where(live, token, NOTHING))
        number = rows.number + live
        goes_on = live & (token != wishes.stop) & (number < wishes.num_tokens) & (rows.length < config.seq_len)
        # Rows that do not go on are computed with the others; nobody looks at them again.
        at = Ring(rows.slot, loop.done, jnp.minimum(rows.length, config.seq_len - 1))
        logits, recent = weights.next_logits(token, at, batch.caches, loop.recent, layout)
        logits = jax.lax.with_sharding_constraint(logits, BY_ROW)
        rows = Rows(rows.slot, rows.length + goes_on, number, goes_on)
        return _Loop(loop.done + 1, logits, recent, rows, made, loop.broken | (loop.rows.live & ~sound))

    cached = cached_within(program, layout)
    recent = jax.tree.map(
        lambda x: jax.lax.with_sharding_constraint(jnp.zeros(x.shape, x.dtype), cached),
        caches_of(program, num_rows, BLOCK),
    )
    nothing = jnp.full((BLOCK, num_rows), NOTHING)
    first = _Loop(jnp.int32(0), batch.logits, recent, rows, nothing, jnp.zeros_like(rows.live))
    last = jax.lax.while_loop(lambda loop: (loop.done < BLOCK) & loop.rows.live.any(), one, first)
    start = (rows.slot + 1) % num_slots(program)

    def longer(cache: Array, new: Array) -> Array:
        written = jax.lax.dynamic_update_slice_in_dim(cache, new, start, 2)
        placed: Array = jax.lax.with_sharding_constraint(written, cached)
        return placed

    return Batch(last.logits, jax.tree.map(longer, batch.caches, last.recent)), last.made, last.broken


def _random(rows: Rows, wishes: Wishes) -> Array:
    """Return the random numbers of a block, one for each token that a live row makes: float32 [BLOCK, rows].

    All at once, since on CPUs the generator is a loop whose every turn costs as much for one number as for many.
    """

    def of(seed: Array, draw: Array, number: Array) -> Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(seed, impl="threefry2x32"), draw)
        return jax.random.uniform(jax.random.fold_in(key, number))

    numbers = rows.number + jnp.arange(BLOCK)[:, None]
    drawn: Array = jax.vmap(jax.vmap(of), in_axes=(None, None, 0))(wishes.seed, wishes.draw, numbers)
    return drawn


def _everywhere(x: Array) -> Array:
    """Let all devices of a replica have it: each decides whether there is another token."""
    copied: Array = jax.lax.with_sharding_constraint(x, P())
    return copied
