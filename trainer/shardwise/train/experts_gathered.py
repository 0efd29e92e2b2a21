"""What the experts of a mixture add, where every device gathers all of a layer's experts for its own tokens.

The picks are sorted by expert, and a product takes as many rows of each as there are (`train/picks.py`).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec

from shardwise.train.collectives import scatter_over, sum_over
from shardwise.train.expert_products import activated, computed, gradients
from shardwise.train.expert_weights import Places, Weights
from shardwise.train.experts_shared import HowShared, Shared, added, back, gathered, partition, partition_of_kept
from shardwise.train.mesh import on_each_device
from shardwise.train.picks import Rows

Array = jax.Array


class How(NamedTuple):
    """How tokens go through experts."""

    activation: str
    places: Places
    """Of the weights."""
    inside: PartitionSpec
    """The partition of what goes in."""
    stream: PartitionSpec
    """The partition of what comes out."""
    by_position: bool
    """Whether that is split by position over tensor."""
    shared: HowShared | None = None
    """How they go through the MLP of all tokens, if there is one."""

    @property
    def picks(self) -> PartitionSpec:
        """Return the partition of [batch, position, k]."""
        return PartitionSpec(*self.inside[:2], None)

    @property
    def ins(self) -> tuple[Any, ...]:
        """Return the partitions of tokens, shares, picks and gathered weights."""
        return self.inside, self.picks, self.picks, self.places.whole

    @property
    def rows(self) -> PartitionSpec:
        """Return the partition of [rows, mlp]."""
        axes = [name for each in self.inside[:2] if each for name in ((each,) if isinstance(each, str) else each)]
        return PartitionSpec(tuple(axes), "tensor")

    def over_tensor(self, x: Array) -> Array:
        """Sum [batch, position, embed] over tensor, into the stream."""
        if self.by_position:
            return scatter_over("tensor", x, self.places.wire, dimension=1)
        return sum_over("tensor", x, self.places.wire)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def mixed(how: How, x: Array, shares: Array, picks: Array, weights: Weights, shared: Shared | None) -> Array:
    """Return what experts and shared MLP add for each token: [batch, position, embed], laid out as the stream."""
    out: Array = _forward(how, x, shares, picks, weights, shared)[0]
    return out


def _forward(how: How, x: Array, shares: Array, picks: Array, weights: Weights, shared: Shared | None):  # type: ignore[no-untyped-def]  # noqa: ANN202
    whole, shared = how.places.gathered(weights), gathered(how.shared, shared)

    def local(x: Array, shares: Array, picks: Array, weights: Weights, shared: Shared | None):  # type: ignore[no-untyped-def]  # noqa: ANN202
        rows = Rows.of(picks, weights.experts)
        out, gate, up = computed(how.activation, rows, x, shares, weights)
        sums, kept = added(how.shared, rows.collected(out, x), x, shared)
        return how.over_tensor(sums).astype(x.dtype), (gate, up, kept)

    ins = (*how.ins, partition(how.shared, shared))
    outs = how.stream, (how.rows, how.rows, partition_of_kept(how.shared))
    out, kept = on_each_device(local, ins, outs)(x, shares, picks, whole, shared)
    return out, (x, shares, picks, whole, shared, kept)


def _backward(how: How, kept, grad: Array) -> tuple[Array, Array, None, Weights, Shared | None]:  # type: ignore[no-untyped-def]  # noqa: ANN001
    shared = kept[4]

    def local(x, shares, picks, weights, shared, kept, grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        gate, up, of_shared = kept
        rows = Rows.of(picks, weights.experts)
        activate = activated(how.activation, gate, up)
        of_rows, of_shares, pairs = gradients(activate, rows, x, shares, weights, grad)
        of_gate, of_up, of_down = weights.gradients(rows, pairs, how.places.wire)
        of_weights = Weights(of_gate, of_up, of_down, weights.gradients_of_biases(rows, pairs))
        of_shares = sum_over("tensor", of_shares, of_shares.dtype)
        sums, of_shared = back(how.shared, rows.collected(of_rows, x), x, shared, of_shared, grad)
        of_x = how.over_tensor(sums).astype(x.dtype)
        return of_x, of_shares, how.places.scattered(of_weights), of_shared

    of_kept = (how.rows, how.rows, partition_of_kept(how.shared))
    ins = (*how.ins, partition(how.shared, shared), of_kept, how.inside)
    outs = (how.stream, how.picks, how.places.stored, partition(how.shared, shared, stored=True))
    of_x, of_shares, of_weights, of_shared = on_each_device(local, ins, outs)(*kept, grad)
    return of_x, of_shares, None, of_weights, of_shared


mixed.defvjp(_forward, _backward)
