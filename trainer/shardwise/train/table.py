"""A token table gathered on every device of `data`, and its gradient summed over them once.

The tables are those of the embedding and the head, which may be tied to one. The lookup and the loss each make a
gradient of the whole table on every device; JAX adds the two up, and only then, here, is the sum scattered. In between
there is one copy per device of `data`, so the array has their mesh axes in its shape.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout as InMemory
from jax.experimental.layout import with_layout_constraint
from jax.sharding import PartitionSpec as P

from shardwise.train.collectives import EVEN, gather_over_data, scatter_over_data, sum_over_data
from shardwise.train.mesh import FSDP, on_each_device, sharing

Array = jax.Array


def copies_spec() -> P:
    """Return the partition of [data_outer, data_inner x context, embed, vocab].

    There is a copy for each device of data and of context, with vocab over tensor.
    """
    inner = ("data_inner", "context") if sharing() == FSDP else "data_inner"
    return P("data_outer", inner, None, "tensor")


class Table(NamedTuple):
    """How a token table is stored, and the dtypes in which it is gathered and its gradient summed."""

    fsdp: bool
    """Whether embed is split over data."""
    compute: jnp.dtype
    """The dtype in which it is gathered and computed with."""
    wire: jnp.dtype
    """The dtype in which the parts of its gradient are added, on a device and over devices."""

    @property
    def spec(self) -> P:
        """The partition of the stored [embed, vocab] table."""
        return P(sharing() if self.fsdp else None, "tensor")


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def copies(how: Table, table: Array) -> Array:
    """Gather the table on every device of `data`.

    Args:
        how: see `Table`.
        table: float32 [embed, vocab], laid out as `how.spec`.

    Returns:
        [data_outer, data_inner x context, embed, vocab], laid out as `copies_spec`: the compute dtype's values in the
        wire's dtype, because a gradient has the dtype of what it is the gradient of.

    """

    def local(table: Array) -> Array:
        table = table.astype(how.compute)
        whole = gather_over_data(table, dimension=0) if how.fsdp else table
        return whole.astype(how.wire)[None, None]

    return on_each_device(local, how.spec, copies_spec())(table)


def _forward(how: Table, table: Array) -> tuple[Array, None]:
    return copies(how, table), None


def _backward(how: Table, _: None, grad: Array) -> tuple[Array]:
    def local(grad: Array) -> Array:
        if not how.fsdp:
            return sum_over_data(grad[0, 0], how.wire).astype(jnp.float32)
        # Rows are padded to a multiple of `EVEN`: a TPU would sum others whole on every chip.
        num_entries = grad.shape[-1]
        fill = -num_entries % EVEN if num_entries > EVEN else 0
        rows = with_layout_constraint(jnp.pad(grad[0, 0], ((0, 0), (0, fill))), InMemory((0, 1)))
        part = scatter_over_data(rows, how.wire, dimension=0)
        if fill:  # a TPU's compiler would move the cut below into the scatter, and then fail on the shapes
            part = jax.lax.optimization_barrier(part)
        return part[:, :num_entries].astype(jnp.float32)

    return (on_each_device(local, copies_spec(), how.spec)(grad),)


copies.defvjp(_forward, _backward)
