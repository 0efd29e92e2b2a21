"""What the experts of a mixture add, where each device of `EXPERT` has some of them and the tokens come to it.

A device gathers the tokens of all these devices, computes for those that picked its experts, and the sums are scattered
back. A token moves to every one of them, whatever it picked, which is no more than an all-to-all of picks where a token
has as many; and nothing that moves has a size that depends on picks. Of experts only what FSDP splits over the other
devices is gathered.

How many picks a device gets is not known before. It takes as many rows as it gets on average first, and then, while
there are more, a quarter as many at a time: memory has no rows for the worst case, and no pick is left out.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.train.collectives import gather_over, scatter_over, sum_over
from shardwise.train.expert_products import activated, computed, gate_and_up, gradients
from shardwise.train.expert_weights import Weights, no_gradients
from shardwise.train.experts_gathered import How
from shardwise.train.experts_shared import Shared, added, back, gathered, partition, partition_of_kept
from shardwise.train.mesh import EXPERT, on_each_device
from shardwise.train.picks import Rows

T = TypeVar("T")
Array = jax.Array


_Sums = tuple[Array, Array, Weights]
"""Of gradients: of tokens, shares and weights."""


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def mixed(how: How, x: Array, shares: Array, picks: Array, weights: Weights, shared: Shared | None) -> Array:
    """Return what experts and shared MLP add for each token: [batch, position, embed], laid out as the stream."""
    out: Array = _forward(how, x, shares, picks, weights, shared)[0]
    return out


def _forward(how: How, x: Array, shares: Array, picks: Array, weights: Weights, shared: Shared | None):  # type: ignore[no-untyped-def]  # noqa: ANN202
    whole, shared = how.places.gathered(weights), gathered(how.shared, shared)

    def local(own: Array, shares: Array, picks: Array, weights: Weights, shared: Shared | None):  # type: ignore[no-untyped-def]  # noqa: ANN202
        x, shares, picks = _of_all(own, shares, picks)

        def add(rows: Rows, out: Array) -> Array:
            return rows.added_to(out, computed(how.activation, rows, x, shares, weights)[0])

        out = _by_windows(_rows(picks, weights), add, jnp.zeros(x.shape, jnp.float32))
        sums, kept = added(how.shared, _own(out, how.places.wire), own, shared)
        return how.over_tensor(sums).astype(x.dtype), kept

    ins, outs = (*how.ins, partition(how.shared, shared)), (how.stream, partition_of_kept(how.shared))
    out, kept = on_each_device(local, ins, outs)(x, shares, picks, whole, shared)
    return out, (x, shares, picks, whole, shared, kept)


def _backward(how: How, kept, grad: Array) -> tuple[Array, Array, None, Weights, Shared | None]:  # type: ignore[no-untyped-def]  # noqa: ANN001
    shared = kept[4]

    def local(own, shares, picks, weights, shared, of_shared, own_grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        x, shares, picks, grad = _of_all(own, shares, picks, own_grad)

        def add(rows: Rows, sums: _Sums) -> _Sums:
            dealt = rows.dealt(x)  # gate and up again: kept, they would need rows for the worst case
            made = activated(how.activation, *gate_and_up(rows, dealt, weights))
            of_rows, of_shares, pairs = gradients(made, rows, x, shares, weights, grad)
            more = weights.gradients(rows, pairs, jnp.float32)
            gate, up, down = (jax.tree.map(jnp.add, of, one) for of, one in zip(sums[2][:3], more, strict=True))
            biases = jax.tree.map(jnp.add, sums[2].biases, weights.gradients_of_biases(rows, pairs))
            return rows.added_to(sums[0], of_rows), sums[1] + of_shares, Weights(gate, up, down, biases)

        nothing = jnp.zeros(x.shape, jnp.float32), jnp.zeros(shares.shape, jnp.float32), no_gradients(weights)
        of_x, of_shares, of_weights = _by_windows(_rows(picks, weights), add, nothing)
        of_shares = sum_over("tensor", _own(of_shares, of_shares.dtype), of_shares.dtype)
        sums, of_shared = back(how.shared, _own(of_x, how.places.wire), own, shared, of_shared, own_grad)
        of_x = how.over_tensor(sums).astype(x.dtype)
        return of_x, of_shares, how.places.scattered(of_weights), of_shared

    ins = (*how.ins, partition(how.shared, shared), partition_of_kept(how.shared), how.inside)
    outs = (how.stream, how.picks, how.places.stored, partition(how.shared, shared, stored=True))
    of_x, of_shares, of_weights, of_shared = on_each_device(local, ins, outs)(*kept, grad)
    return of_x, of_shares, None, of_weights, of_shared


mixed.defvjp(_forward, _backward)


def _of_all(*own: Array) -> tuple[Array, ...]:
    """Gather [batch, position, ...] from all devices whose experts these tokens may have picked."""
    return tuple(gather_over(EXPERT, x, dimension=0) for x in own)


def _own(x: Array, wire: jnp.dtype) -> Array:
    """Sum [batch, position, ...] over these devices; each keeps what is of its own tokens."""
    return scatter_over(EXPERT, x, wire, dimension=0)


def _rows(picks: Array, weights: Weights) -> Rows:
    """Sort the picks of all these devices' tokens: first those of the experts that are here."""
    num_experts = weights.experts
    return Rows.of(picks - num_experts * lax.axis_index(EXPERT), num_experts)


def _by_windows(rows: Rows, add: Callable[[Rows, T], T], nothing: T) -> T:
    """Add up over windows of the rows that are of experts here."""
    size = rows.order.size // lax.axis_size(EXPERT)
    small, num_rows = max(1, size // 4), rows.sizes.sum()

    def more(state: tuple[Array, T]) -> tuple[Array, T]:
        start, sums = state
        return start + small, add(rows.window(start, small), sums)

    sums = add(rows.window(jnp.zeros_like(num_rows), size), nothing)
    return lax.while_loop(lambda state: state[0] < num_rows, more, (jnp.full_like(num_rows, size), sums))[1]
