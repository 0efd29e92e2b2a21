"""What the experts of a mixture add, where every device gathers all of a layer's experts for its own tokens.

The picks are sorted by expert, and a product takes as many rows of each as there are (`train/picks.py`). The backward
pass is written out, since a derived one would compute the last product again.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from shardwise.train.collectives import scatter_over, sum_over
from shardwise.train.expert_biases import Biases
from shardwise.train.fsdp import Placement, gather, scatter
from shardwise.train.mesh import on_each_device
from shardwise.train.mlp import gated
from shardwise.train.picks import Rows
from shardwise.train.products import GATHERED

Array = jax.Array


class Weights(NamedTuple):
    """[embed, experts, mlp] each, as stored or gathered."""

    gate: Array
    up: Array
    down: Array
    biases: Biases | None = None
    """Of gate and up, float32 and whole over data."""


class How(NamedTuple):
    """How tokens go through experts."""

    activation: str
    place: Placement
    """Of each weight."""
    inside: PartitionSpec
    """The partition of what goes in."""
    stream: PartitionSpec
    """The partition of what comes out."""
    by_position: bool
    """Whether that is split by position over tensor."""
    has_biases: bool = False
    """Whether gate and up have biases."""

    @property
    def picks(self) -> PartitionSpec:
        """Return the partition of [batch, position, k]."""
        return PartitionSpec(*self.inside[:2], None)

    @property
    def ins(self) -> tuple[Any, ...]:
        """Return the partitions of tokens, shares, picks and gathered weights."""
        return self.inside, self.picks, self.picks, self.alike(self.place.whole)

    def alike(self, spec: Any) -> Weights:
        """Return the partition of all three weights, and of biases."""
        return Weights(spec, spec, spec, Biases.partition(self.place.whole) if self.has_biases else None)

    def over_tensor(self, x: Array) -> Array:
        """Sum [batch, position, embed] over tensor, into the stream."""
        if self.by_position:
            return scatter_over("tensor", x, self.place.wire, dimension=1)
        return sum_over("tensor", x, self.place.wire)

    def whole(self, weights: Weights) -> Weights:
        """Gather the weights."""
        gate, up, down = (
            checkpoint_name(gather(self.place, weight), GATHERED) for weight in (weights.gate, weights.up, weights.down)
        )
        return Weights(gate, up, down, weights.biases)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def mixed(how: How, x: Array, shares: Array, picks: Array, weights: Weights) -> Array:
    """Return what the experts add for each token: [batch, position, embed], laid out as the residual stream."""
    out: Array = _forward(how, x, shares, picks, weights)[0]
    return out


def _forward(how: How, x: Array, shares: Array, picks: Array, weights: Weights):  # type: ignore[no-untyped-def]  # noqa: ANN202
    whole = how.whole(weights)

    def local(x: Array, shares: Array, picks: Array, weights: Weights) -> tuple[Array, Array, Array]:
        rows = Rows.of(picks, weights.up.shape[1])
        out, gate, up = computed(how.activation, rows, x, shares, weights)
        return how.over_tensor(rows.collected(out, x)).astype(x.dtype), gate, up

    outs = (how.stream, _of_rows(how), _of_rows(how))
    out, gate, up = on_each_device(local, how.ins, outs)(x, shares, picks, whole)
    return out, (x, shares, picks, whole, gate, up)


def _backward(how: How, kept, grad: Array) -> tuple[Array, Array, None, Weights]:  # type: ignore[no-untyped-def]  # noqa: ANN001
    x, shares, picks, whole, gate, up = kept

    def local(x: Array, shares: Array, picks: Array, weights: Weights, gate: Array, up: Array, grad: Array):  # type: ignore[no-untyped-def]  # noqa: ANN202
        rows = Rows.of(picks, weights.up.shape[1])
        activate = activated(how.activation, gate, up)
        of_rows, of_shares, pairs = gradients(activate, rows, x, shares, weights, grad)
        of_weights = [rows.of_weight(*pair, how.place.wire) for pair in pairs]
        of_biases = None if weights.biases is None else weights.biases.gradients(rows, pairs)
        of_shares = sum_over("tensor", of_shares, of_shares.dtype)
        of_x = how.over_tensor(rows.collected(of_rows, x)).astype(x.dtype)
        return of_x, of_shares, stored(how.place, of_weights, of_biases)

    ins = (*how.ins, _of_rows(how), _of_rows(how), how.inside)
    outs = (how.stream, how.picks, how.alike(how.place.stored))
    of_x, of_shares, of_weights = on_each_device(local, ins, outs)(x, shares, picks, whole, gate, up, grad)
    return of_x, of_shares, None, of_weights


mixed.defvjp(_forward, _backward)

# ---- of some rows, on one device

Activated = tuple[Array, Callable[[Array], tuple[Array, Array]]]
"""[rows, mlp] before the last product, and how its gradient becomes those of gate and up."""


def computed(activation: str, rows: Rows, x: Array, shares: Array, weights: Weights) -> tuple[Array, Array, Array]:
    """Return what the rows add to their tokens, [rows, embed], and their gate and up, [rows, mlp]."""
    dealt = rows.dealt(x)
    gate, up = gate_and_up(rows, dealt, weights)
    hidden = gated(activation, gate, up) * rows.sorted(shares)[:, None].astype(x.dtype)
    return rows.out_of(hidden, weights.down), gate, up


def gate_and_up(rows: Rows, dealt: Array, weights: Weights) -> tuple[Array, Array]:
    """Return [rows, mlp] of each, of [rows, embed]."""
    gate, up = rows.into(dealt, weights.gate), rows.into(dealt, weights.up)
    return (gate, up) if weights.biases is None else weights.biases.added(rows, gate, up)


def activated(activation: str, gate: Array, up: Array) -> Activated:
    """Return what gate and up make together."""
    hidden, of_hidden = jax.vjp(partial(gated, activation), gate, up)
    return hidden, of_hidden


def gradients(
    made: Activated, rows: Rows, x: Array, shares: Array, weights: Weights, grad: Array
) -> tuple[Array, Array, tuple[tuple[Array, Array], ...]]:
    """Return the gradients of the rows, [rows, embed], and of shares, and what each weight's is a product of."""
    dealt, dealt_grad, share = rows.dealt(x), rows.dealt(grad), rows.sorted(shares)[:, None]
    hidden, of_hidden = made
    slope = rows.into(dealt_grad, weights.down)
    of_shares = rows.back_to_picks((hidden.astype(jnp.float32) * slope).sum(-1), shares)
    of_gate, of_up = of_hidden((slope * share).astype(hidden.dtype))
    of_rows = rows.out_of(of_gate, weights.gate) + rows.out_of(of_up, weights.up)
    pairs = ((dealt, of_gate), (dealt, of_up), (dealt_grad, hidden * share.astype(hidden.dtype)))
    return of_rows, of_shares, pairs


def stored(place: Placement, of_weights: list[Array], of_biases: Biases | None) -> Weights:
    """Sum gradients over data, and lay those of weights, [experts, embed, mlp], out as they are stored."""
    over_data = None if of_biases is None else of_biases.summed(place)
    gate, up, down = (scatter(place, one.transpose(1, 0, 2)) for one in of_weights)
    return Weights(gate, up, down, over_data)


def _of_rows(how: How) -> PartitionSpec:
    """Return the partition of [rows, mlp]."""
    axes = [name for each in how.inside[:2] if each for name in ((each,) if isinstance(each, str) else each)]
    return PartitionSpec(tuple(axes), "tensor")
