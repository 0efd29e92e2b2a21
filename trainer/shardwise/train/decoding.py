"""The programs of generation, over a batch of sequences on whatever layout the parameters have.

Three programs: one makes the weights that the others read, cast and laid out once; one takes the beginnings of all
sequences at once; and one makes up to `BLOCK` tokens of each, the choice of them included. So the host takes part once
in a block, and the caches are written once in a block. `shardwise.train.decoder` compiles and calls them.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.job.rounding import padded
from shardwise.train.caches import Cache, Ring
from shardwise.train.layout import Layout
from shardwise.train.mesh import DATA
from shardwise.train.model import Gpt
from shardwise.train.sampling import Sampling
from shardwise.train.state import REFERENCE, Abstract, Program, parameters

Array = jax.Array
BLOCK = 16
"""Tokens between two looks of the host: text streams, and stop words are found, in steps of as many.

Only when no row goes on are fewer made, and nothing follows then.
"""
NOTHING = -1
"""In the place of a token: that a row has made none."""


class Batch(NamedTuple):
    """What the next tokens follow from; it stays on the devices. Of such tuples there are abstract ones too."""

    logits: Any
    """float32 [rows, vocab]."""
    caches: tuple[Cache, ...]
    """Of every block."""


class Rows(NamedTuple):
    """Where the rows of a batch stand: arrays of the host, which all devices get."""

    slot: Any
    """int32 scalar: the newest slot of the caches (`attention.Ring`); one less than a multiple of `BLOCK`."""
    length: Any
    """int32 [rows]: positions of the row in the caches."""
    number: Any
    """int32 [rows]: tokens made so far."""
    sequence: Any
    """int32 [rows]: which sequence it is, for its random numbers."""
    live: Any
    """bool [rows]: whether tokens are wanted of it."""


class Wish(NamedTuple):
    """What is asked of all rows."""

    seed: Any
    """uint32 [2]."""
    num_tokens: Any
    """int32 scalar: the most of each."""
    stop: Any
    """int32 scalar: the token that ends a row, or `NOTHING`."""


def lower_weights(program: Program, layout: Layout) -> jax.stages.Lowered:
    """Lower (params by path) -> the weights' arrays."""
    jitted = jax.jit(
        lambda params: jax.tree.leaves(_prepared(program, params)),
        in_shardings=({path: x.sharding for path, x in params_of(program).items()},),
        out_shardings=jax.tree.leaves(layout.placed(weights_of(program))),
        compiler_options=program.compiler_options(runs_once=True),
    )
    return program.lower(jitted, params_of(program))


def lower_window(program: Program, layout: Layout, num_rows: int, length: int) -> jax.stages.Lowered:
    """Lower (weights, int32 [rows, length], the first tokens' positions) -> Batch; see `Gpt.first_logits`."""

    def window(weights: Gpt, tokens: Array, start: Array) -> Batch:
        logits, caches = weights.first_logits(tokens, start, num_slots(program), layout)
        return Batch(jax.lax.with_sharding_constraint(logits, _by_row(layout)), caches)

    inputs = Abstract((num_rows, length), jnp.int32), Abstract((num_rows,), jnp.int32)
    return _lower(window, program, layout, inputs, outs=_batch_sharding(program, layout))


def lower_tokens(program: Program, layout: Layout, num_rows: int, sampling: Sampling) -> jax.stages.Lowered:
    """Lower (weights, Batch, Rows, Wish) -> (Batch, int32 [BLOCK, rows], bool [rows]); the batch is donated."""
    number, count = Abstract((), jnp.int32), Abstract((num_rows,), jnp.int32)
    logits = Abstract((num_rows, program.config.Vocab.size), jnp.float32)
    batch = Batch(logits, caches_of(program, num_rows))
    rows = Rows(number, count, count, count, Abstract((num_rows,), jnp.bool_))
    wish = Wish(Abstract((2,), jnp.uint32), number, number)
    outs = (_batch_sharding(program, layout), layout.replicated, layout.replicated)
    return _lower(partial(_tokens, program, layout, sampling), program, layout, (batch, rows, wish), outs=outs)


def _lower(
    function: Callable[..., Any], program: Program, layout: Layout, inputs: tuple[Any, ...], *, outs: Any
) -> jax.stages.Lowered:
    """Lower a program over the weights. Other inputs are whole on every device, except a batch, which is donated.

    It takes the weights' arrays, in their order in the model.
    """
    batch = _batch_sharding(program, layout)
    shardings = [batch if isinstance(x, Batch) else layout.replicated for x in inputs]
    weights, model = jax.tree.flatten(weights_of(program))
    placed = jax.tree.leaves(layout.placed(weights_of(program)))
    jitted = jax.jit(
        lambda weights, *inputs: function(jax.tree.unflatten(model, weights), *inputs),
        in_shardings=(tuple(placed), *shardings),
        out_shardings=outs,
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
    program: Program, layout: Layout, sampling: Sampling, weights: Gpt, batch: Batch, rows: Rows, wish: Wish
) -> tuple[Batch, Array, Array]:
    config, num_rows = program.config, rows.live.shape[0]
    random = _random(rows, wish)

    def one(loop: _Loop) -> _Loop:
        rows, logits = loop.rows, loop.logits[:, : config.vocab_size]
        sound = _everywhere(jnp.isfinite(logits).all(-1), layout)
        token = _everywhere(sampling.choose(jnp.where(sound[:, None], logits, 0), random[loop.done]), layout)
        live = rows.live & sound
        made = loop.made.at[loop.done].set(jnp.where(live, token, NOTHING))
        number = rows.number + live
        goes_on = live & (token != wish.stop) & (number < wish.num_tokens) & (rows.length < config.seq_len)
        # Rows that do not go on are computed with the others; nobody looks at them again.
        at = Ring(rows.slot, loop.done, jnp.minimum(rows.length, config.seq_len - 1))
        logits, recent = weights.next_logits(token, at, batch.caches, loop.recent, layout)
        logits = jax.lax.with_sharding_constraint(logits, _by_row(layout))
        rows = Rows(rows.slot, rows.length + goes_on, number, rows.sequence, goes_on)
        return _Loop(loop.done + 1, logits, recent, rows, made, loop.broken | (loop.rows.live & ~sound))

    cached = cached_by(program, layout)
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


def _random(rows: Rows, wish: Wish) -> Array:
    """Return the random numbers of a block, one for each token that a live row makes: float32 [BLOCK, rows].

    All at once, since on CPUs the generator is a loop whose every turn costs as much for one number as for many.
    """
    key = jax.random.wrap_key_data(wish.seed, impl="threefry2x32")

    def of(sequence: Array, number: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, sequence), number))

    numbers = rows.number + jnp.arange(BLOCK)[:, None]
    drawn: Array = jax.vmap(jax.vmap(of), in_axes=(None, 0))(rows.sequence, numbers)
    return drawn


def _prepared(program: Program, params: Mapping[str, Array]) -> Gpt:
    return program.model(params).for_generation(program.layout.dtype)


def params_of(program: Program) -> dict[str, Abstract]:
    """Return the parameters that generation needs, as the program stores them: not what answers are compared with."""
    return {path: x for path, x in parameters(program.abstract()).items() if not path.startswith(REFERENCE)}


def weights_of(program: Program) -> Gpt:
    """Return the weights' shapes and dtypes."""
    weights: Gpt = jax.eval_shape(partial(_prepared, program), params_of(program))
    return weights


def num_slots(program: Program) -> int:
    """Return how many positions a cache has: those of the model, up to a multiple of `BLOCK`."""
    return padded(program.config.seq_len, BLOCK)


def caches_of(program: Program, num_rows: int, num_positions: int | None = None) -> tuple[Cache, ...]:
    """Return the shapes and dtype of caches, of `num_slots` positions or of so many."""
    config, length = program.config, num_positions or num_slots(program)

    def part(heads: int, size: int) -> Any:
        return Abstract((num_rows, heads, length, size), program.layout.dtype)

    if config.is_latent:
        cache = Cache(part(1, config.KvDown.size))
    else:
        cache = Cache(*(part(config.num_kv_heads, size) for size in (config.head_size, config.value_size)))
    return (cache,) * config.num_layers


def _batch_sharding(program: Program, layout: Layout) -> Batch:
    cached = cached_by(program, layout)
    return Batch(_by_row(layout), jax.tree.map(lambda _: cached, caches_of(program, 1)))


def cached_by(program: Program, layout: Layout) -> NamedSharding:
    """Return the sharding of each array of a cache."""
    return NamedSharding(layout.mesh, layout.spec(caches_of(program, 1)[0].axes, layout.compute))


def _by_row(layout: Layout) -> NamedSharding:
    """Return the sharding of logits: rows over data, and a row's whole vocabulary where it is chosen from."""
    return NamedSharding(layout.mesh, PartitionSpec(DATA))


def _everywhere(x: Array, layout: Layout) -> Array:
    """Let all devices have it: each decides whether there is another token."""
    copied: Array = jax.lax.with_sharding_constraint(x, layout.replicated)
    return copied
