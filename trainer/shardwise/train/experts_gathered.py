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
from shardwise.train.fsdp import Placement, gather, scatter
from shardwise.train.mesh import on_each_device
from shardwise.train.mlp import ACTIVATIONS
from shardwise.train.picks import Rows
from shardwise.train.products import GATHERED

Array = jax.Array


class Weights(NamedTuple):
    """[embed, experts, mlp] each, as stored or gathered."""

    gate: Array
    up: Array
    down: Array


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

    @property
    def picks(self) -> PartitionSpec:
        """Return the partition of [batch, position, k]."""
        return PartitionSpec(*self.inside[:2], None)

    @property
    def ins(self) -> tuple[Any, ...]:
        """Return the partitions of tokens, shares, picks and gathered weights."""
        return self.inside, self.picks, self.picks, alike(self.place.whole)

    def over_tensor(self, x: Array) -> Array:
        """Sum [batch, position, embed] over tensor, into the stream."""
        if self.by_position:
            return scatter_over("tensor", x, self.place.wire, dimension=1)
        return sum_over("tensor", x, self.place.wire)

    def whole(self, weights: Weights) -> Weights:
        """Gather the weights."""
        return Weights(*(checkpoint_name(gather(self.place, weight), GATHERED) for weight in weights))


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
        of_shares = sum_over("tensor", of_shares, of_shares.dtype)
        return how.over_tensor(rows.collected(of_rows, x)).astype(x.dtype), of_shares, stored(how.place, of_weights)

    ins = (*how.ins, _of_rows(how), _of_rows(how), how.inside)
    outs = (how.stream, how.picks, alike(how.place.stored))
    of_x, of_shares, of_weights = on_each_device(local, ins, outs)(x, shares, picks, whole, gate, up, grad)
    return of_x, of_shares, None, of_weights


mixed.defvjp(_forward, _backward)

# ---- of some rows, on one device

Activated = tuple[Array, Callable[[Array], tuple[Array, Array]]]
"""[rows, mlp] before the last product, and how its gradient becomes those of gate and up."""


def computed(activation: str, rows: Rows, x: Array, shares: Array, weights: Weights) -> tuple[Array, Array, Array]:
    """Return what the rows add to their tokens, [rows, embed], and their gate and up, [rows, mlp]."""
    dealt = rows.dealt(x)
    gate, up = rows.into(dealt, weights.gate), rows.into(dealt, weights.up)
    hidden = ACTIVATIONS[activation](gate) * up * rows.sorted(shares)[:, None].astype(x.dtype)
    return rows.out_of(hidden, weights.down), gate, up


def activated(activation: str, gate: Array, up: Array) -> Activated:
    """Return what gate and up make together."""
    hidden, of_hidden = jax.vjp(lambda gate, up: ACTIVATIONS[activation](gate) * up, gate, up)
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


def stored(place: Placement, of_weights: list[Array]) -> Weights:
    """Sum gradients, [experts, embed, mlp], over data and lay them out as they are stored."""
    return Weights(*(scatter(place, one.transpose(1, 0, 2)) for one in of_weights))


def alike(spec: Any) -> Weights:
    """Return the partition of all three weights."""
    return Weights(spec, spec, spec)


def _of_rows(how: How) -> PartitionSpec:
    """Return the partition of [rows, mlp]."""
    axes = [name for each in how.inside[:2] if each for name in ((each,) if isinstance(each, str) else each)]
    return PartitionSpec(tuple(axes), "tensor")
