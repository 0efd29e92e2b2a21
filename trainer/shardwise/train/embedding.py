"""The token table's lookup, over a table split by row (vocabulary over tensor) and by column (embed over data).

Called by the model. Written in one shard_map because XLA would gather the whole table: here each device looks up the
rows it holds and the results are added over tensor; the gradient is summed in float32 and reduce-scattered once.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from shardwise.train.collectives import gather_columns, sum_over, sum_over_data

Array = jax.Array
MANUAL = {"data", "context", "pipeline", "tensor"}


class Table(NamedTuple):
    """How the token table is laid out and how its gradient is summed."""

    num_rows: int
    """Rows of the whole table: the padded vocabulary."""
    fsdp: bool
    """Whether the columns are split over data."""
    wire: jnp.dtype
    """The dtype of sums over devices."""

    @property
    def spec(self) -> P:
        """The partition of the [vocab, embed] table."""
        return P("tensor", "data" if self.fsdp else None)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def lookup(layout: Table, table: Array, tokens: Array) -> Array:
    """The rows of the table for these tokens.

    Args:
        layout: see `Table`.
        table: [vocab, embed], laid out as `layout.spec`.
        tokens: int32 [batch, position], batch over data.

    Returns:
        [batch, position, embed] in the table's dtype, batch over data.

    """

    def local(table: Array, tokens: Array) -> Array:
        row, held = _held(tokens, table.shape[0])
        rows = jnp.where(held[..., None], gather_columns(table, fsdp=layout.fsdp)[row], 0)
        return sum_over("tensor", rows, layout.wire).astype(table.dtype)

    specs = (layout.spec, P("data"))
    return jax.shard_map(local, in_specs=specs, out_specs=P("data"), axis_names=MANUAL, check_vma=False)(table, tokens)


def _forward(layout: Table, table: Array, tokens: Array) -> tuple[Array, Array]:
    return lookup(layout, table, tokens), tokens


def _backward(layout: Table, tokens: Array, grad: Array) -> tuple[Array, None]:
    def local(tokens: Array, grad: Array) -> Array:
        row, held = _held(tokens, layout.num_rows // jax.lax.axis_size("tensor"))
        empty = jnp.zeros((layout.num_rows // jax.lax.axis_size("tensor"), grad.shape[-1]), jnp.float32)
        added = empty.at[row].add(jnp.where(held[..., None], grad, 0).astype(jnp.float32))
        return sum_over_data(added, layout.wire, split=1 if layout.fsdp else None).astype(grad.dtype)

    specs = (P("data"), P("data"))
    mapped = jax.shard_map(local, in_specs=specs, out_specs=layout.spec, axis_names=MANUAL, check_vma=False)
    return mapped(tokens, grad), None


lookup.defvjp(_forward, _backward)


def _held(tokens: Array, num_rows: int) -> tuple[Array, Array]:
    """The local row of each token, and whether this device holds it."""
    row = tokens - jax.lax.axis_index("tensor") * num_rows
    return jnp.clip(row, 0, num_rows - 1), (row >= 0) & (row < num_rows)
