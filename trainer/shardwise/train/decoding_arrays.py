"""What the programs of generation take and return: shapes, dtypes, and where each array lives."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardwise.job.rounding import padded
from shardwise.train.caches import Cache
from shardwise.train.layout import Layout
from shardwise.train.mesh import DATA
from shardwise.train.model import Gpt
from shardwise.train.sampling import Settings
from shardwise.train.state import REFERENCE, Abstract, Program, parameters

Array = jax.Array
BLOCK = 16
"""Tokens between two looks of the host: text streams, and stop words are found, in steps of as many.

Only when no row goes on are fewer made, and nothing follows then.
"""
NOTHING = -1
"""In the place of a token: that a row has made none."""
BY_ROW = P(DATA)
"""The partition of logits within a replica: rows over data, and a row's whole vocabulary where it is chosen from."""


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
    live: Any
    """bool [rows]: whether tokens are wanted of it."""


class Joining(NamedTuple):
    """Which rows of a batch begin with which tokens, while the others go on: arrays of the host as well."""

    tokens: Any
    """int32 [rows, length]: a row's tokens are the last of them."""
    start: Any
    """int32 [rows]: the position of a row's first entry; those before position 0 are padding."""
    joins: Any
    """bool [rows]: whether the row begins here; of any other nothing is read."""
    slot: Any
    """int32 scalar: the newest slot of the caches, where the last tokens go."""


class Wishes(NamedTuple):
    """What is asked of each row: arrays of the host as well."""

    seed: Any
    """uint32 [rows, 2]."""
    draw: Any
    """int32 [rows]: which of the rows of this seed it is."""
    num_tokens: Any
    """int32 [rows]: the most of it."""
    stop: Any
    """int32 [rows]: the token that ends it, or `NOTHING`."""
    settings: Settings


def prepared(program: Program, params: Mapping[str, Array]) -> Gpt:
    """Return the model as generation reads it, made of the parameters."""
    return program.model(params).for_generation(program.layout.dtype)


def params_of(program: Program) -> dict[str, Abstract]:
    """Return the parameters that generation needs, as the program stores them: not what answers are compared with."""
    return {path: x for path, x in parameters(program.abstract()).items() if not path.startswith(REFERENCE)}


def weights_of(program: Program) -> Gpt:
    """Return the weights' shapes and dtypes."""
    weights: Gpt = jax.eval_shape(partial(prepared, program), params_of(program))
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


def batch_of(program: Program, num_rows: int) -> Batch:
    """Return the shapes and dtypes of a batch."""
    return Batch(Abstract((num_rows, program.config.Vocab.size), jnp.float32), caches_of(program, num_rows))


def placed_batch(program: Program, layout: Layout) -> Batch:
    """Return the shardings of a batch."""
    cached = cached_by(program, layout)
    return Batch(
        NamedSharding(layout.mesh, _over_replicas(layout, BY_ROW)),
        jax.tree.map(lambda _: cached, caches_of(program, 1)),
    )


def cached_by(program: Program, layout: Layout) -> NamedSharding:
    """Return the sharding of each array of a cache."""
    return NamedSharding(layout.mesh, _over_replicas(layout, cached_within(program, layout)))


def cached_within(program: Program, layout: Layout) -> P:
    """Return the partition of each array of a cache within a replica."""
    return layout.spec(caches_of(program, 1)[0].axes, layout.compute)


def _over_replicas(layout: Layout, spec: P) -> P:
    """Return the partition of rows over all replicas, of that within one."""
    return P(("replica", *spec[0]), *spec[1:]) if layout.mesh.shape["replica"] > 1 else spec
