"""The token table's lookup, over copies of the table whose vocabulary is split over tensor.

It is one shard_map, because XLA would gather the whole vocabulary: here each device looks up the tokens it holds, and
the results are added over tensor. The gradient is of a whole copy; `train/table.py` sums it over data.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from shardwise.train.collectives import gather_over, scatter_over, sum_over
from shardwise.train.mesh import non_manual_axes, tokens_spec
from shardwise.train.table import copies_spec

Array = jax.Array


class Lookup(NamedTuple):
    """The layout of a lookup, and the dtypes of its result and its sums."""

    num_tokens: int
    """Entries of the whole table: the padded vocabulary."""
    by_position: bool
    """Whether the result is split by position over tensor, or whole on all of its devices."""
    compute: jnp.dtype
    """The dtype of the result."""
    wire: jnp.dtype
    """The dtype of sums over devices."""

    @property
    def spec(self) -> P:
        """The partition of the [batch, position, embed] result."""
        return tokens_spec(by_tensor=self.by_position)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def lookup(how: Lookup, copies: Array, tokens: Array) -> Array:
    """Look up the entries of the table for these tokens.

    Args:
        how: see `Lookup`.
        copies: [data_outer, data_inner x context, embed, vocab] in the wire's dtype: `table.copies`.
        tokens: int32 [batch, position], laid out as `mesh.tokens_spec`.

    Returns:
        [batch, position, embed] in the compute dtype, laid out as `how.spec`.

    """

    def local(copies: Array, tokens: Array) -> Array:
        table = copies[0, 0].astype(how.compute)
        entry, held = _held(tokens, table.shape[1])
        # Transposed first: every platform gathers contiguous rows fastest.
        found = jnp.where(held[..., None], table.T[entry], 0)
        if how.by_position:
            return scatter_over("tensor", found, how.wire, dimension=1).astype(how.compute)
        return sum_over("tensor", found, how.wire).astype(how.compute)

    specs = (copies_spec(), tokens_spec())
    mapped = jax.shard_map(local, in_specs=specs, out_specs=how.spec, axis_names=non_manual_axes(), check_vma=False)
    return mapped(copies, tokens)


def _forward(how: Lookup, copies: Array, tokens: Array) -> tuple[Array, Array]:
    return lookup(how, copies, tokens), tokens


def _backward(how: Lookup, tokens: Array, grad: Array) -> tuple[Array, None]:
    def local(tokens: Array, grad: Array) -> Array:
        if how.by_position:
            grad = gather_over("tensor", grad, dimension=1)
        num_entries = how.num_tokens // jax.lax.axis_size("tensor")
        entry, held = _held(tokens, num_entries)
        empty = jnp.zeros((num_entries, grad.shape[-1]), jnp.float32)
        added = empty.at[entry].add(jnp.where(held[..., None], grad, 0).astype(jnp.float32))
        return added.astype(how.wire).T[None, None]

    specs = (tokens_spec(), how.spec)
    mapped = jax.shard_map(
        local, in_specs=specs, out_specs=copies_spec(), axis_names=non_manual_axes(), check_vma=False
    )
    return mapped(tokens, grad), None


lookup.defvjp(_forward, _backward)


def _held(tokens: Array, num_entries: int) -> tuple[Array, Array]:
    """Return the local entry of each token, and whether this device holds it."""
    entry = tokens - jax.lax.axis_index("tensor") * num_entries
    return jnp.clip(entry, 0, num_entries - 1), (entry >= 0) & (entry < num_entries)
