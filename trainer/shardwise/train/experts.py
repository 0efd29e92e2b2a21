"""The feed-forward layer as a mixture of experts: a router picks a few MLPs for each token, and weighs what they add.

No token is left out, however many want the same expert: the picks are sorted by expert, and a product takes as many
rows of each as there are (`train/grouped.py`). Every device has a part of each expert, split over tensor, and
does its own tokens. The backward pass is written out, since a derived one would compute the last product again.

Sources: Shazeer et al., "Outrageously Large Neural Networks" (2017); Gale et al., "MegaBlocks" (2022) for products
without a capacity; Jiang et al., "Mixtral of Experts" (2024). `train/balance.py` keeps the loads even.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import NamedArray
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from shardwise.train import grouped
from shardwise.train.balance import charged
from shardwise.train.collectives import scatter_over, sum_over
from shardwise.train.config import GptConfig
from shardwise.train.fsdp import Placement, gather, scatter
from shardwise.train.layout import Layout
from shardwise.train.linear import Linear
from shardwise.train.mesh import on_each_device
from shardwise.train.mlp import ACTIVATIONS, Mlp
from shardwise.train.products import GATHERED

Array = jax.Array


class Experts(eqx.Module):
    """Gated MLPs side by side, and the router that picks among them."""

    config: GptConfig = eqx.field(static=True)
    router: Linear
    gate: Linear
    up: Linear
    down: Linear

    @classmethod
    def init(cls, config: GptConfig, *, key: Array) -> Self:
        """Return normal weights; `down`, which adds to the residual stream, is smaller by 1 / sqrt(2 layers)."""
        router_key, gate_key, up_key, down_key = jax.random.split(key, 4)
        std, inside = config.init_std, (config.Experts, config.Mlp)
        return cls(
            config,
            Linear.init(config.Embed, config.Routes, std, bias=False, key=router_key),
            Linear.init(config.Embed, inside, std, bias=False, key=gate_key),
            Linear.init(config.Embed, inside, std, bias=False, key=up_key),
            Linear.init(inside, config.Embed, config.residual_init_std, bias=False, key=down_key),
        )

    def __call__(self, x: NamedArray, layout: Layout) -> NamedArray:
        """Map {batch, position, embed} to the same."""
        x = x.rearrange(("batch", "position", "embed"))
        shares, picks = self._routed(x, layout)
        names = [axis.name for axis in self.gate.weight.axes]
        how = _How(
            activation=self.config.activation,
            place=layout.placement(names, layout.dtype),
            inside=layout.spec(("batch", "position", "embed"), layout.compute),
            stream=layout.partitions(x)[1],
            by_position=layout.splits_positions(x.resolve_axis("position").size),
        )
        weights = _Weights(self.gate.weight.array, self.up.weight.array, self.down.weight.array)
        return layout.leave(hax.named(_mixed(how, x.array, shares, picks, weights), x.axes))

    def _routed(self, x: NamedArray, layout: Layout) -> tuple[Array, Array]:
        """Return the share of each token's experts in what it gets, float32, and which they are: [batch, position, k].

        In float32: a tie that rounding makes would send a token elsewhere.
        """
        config = self.config
        exact = replace(layout, dtype=jnp.dtype(jnp.float32))
        logits = self.router(x.astype(jnp.float32), exact, layout.put)
        likely = hnn.softmax(logits, "routes").rearrange(("batch", "position", "routes")).array
        shares, picks = jax.lax.top_k(likely, config.experts_per_token)
        if config.experts_share_one:
            shares = shares / shares.sum(-1, keepdims=True)
        return charged(config.balance / config.num_layers, shares, likely, picks), picks


FeedForward = Mlp | Experts


def feed_forward(config: GptConfig, *, key: Array) -> FeedForward:
    """Return a block's feed-forward layer: one MLP, or a mixture of them."""
    return (Experts if config.num_experts else Mlp).init(config, key=key)


class _Weights(NamedTuple):
    """[embed, experts, mlp] each, as stored or gathered."""

    gate: Array
    up: Array
    down: Array


class _How(NamedTuple):
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


class _Rows(NamedTuple):
    """A device's picks, sorted by expert."""

    order: Array
    """int32 [rows]: which pick each is, counted one token after the other."""
    back: Array
    """int32 [rows]: where each token's picks went, one token after the other."""
    sizes: Array
    """int32 [experts]: how many each has."""

    @classmethod
    def of(cls, picks: Array, num_experts: int) -> Self:
        """Sort the experts of all tokens, [batch, position, k]; those of one expert stay in the tokens' order."""
        experts = picks.reshape(-1)
        order = jnp.argsort(experts, stable=True)
        return cls(order, jnp.argsort(order), jnp.bincount(experts, length=num_experts))

    def dealt(self, x: Array) -> Array:
        """Return [rows, ...] of [batch, position, ...]: each token's once for each pick."""
        per_token = self.order.size // (x.shape[0] * x.shape[1])
        return x.reshape(-1, *x.shape[2:])[self.order // per_token]

    def sorted(self, x: Array) -> Array:
        """Return [rows] of [batch, position, k]."""
        return x.reshape(-1)[self.order]

    def collected(self, rows: Array, like: Array) -> Array:
        """Return [batch, position, embed]: the sum of each token's rows, in float32."""
        num_tokens = like.shape[0] * like.shape[1]
        by_token = rows[self.back].reshape(num_tokens, -1, rows.shape[-1])
        collected: Array = by_token.sum(1, dtype=jnp.float32).reshape(like.shape)
        return collected


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mixed(how: _How, x: Array, shares: Array, picks: Array, weights: _Weights) -> Array:
    """Return what the experts add for each token: [batch, position, embed], laid out as the residual stream."""
    out: Array = _forward(how, x, shares, picks, weights)[0]
    return out


def _forward(how: _How, x: Array, shares: Array, picks: Array, weights: _Weights):  # type: ignore[no-untyped-def]  # noqa: ANN202
    whole = _Weights(*(checkpoint_name(gather(how.place, weight), GATHERED) for weight in weights))

    def local(x: Array, shares: Array, picks: Array, weights: _Weights) -> tuple[Array, Array, Array]:
        rows = _Rows.of(picks, weights.up.shape[1])
        dealt = rows.dealt(x)
        gate, up = (grouped.into(dealt, one, rows.sizes) for one in weights[:2])
        hidden = ACTIVATIONS[how.activation](gate) * up * rows.sorted(shares)[:, None].astype(x.dtype)
        out = rows.collected(grouped.out_of(hidden, weights.down, rows.sizes), x)
        return _over_tensor(how, out).astype(x.dtype), gate, up

    of_rows = PartitionSpec(tuple(_flat(how.inside[:2])), "tensor")
    outs = (how.stream, of_rows, of_rows)
    out, gate, up = on_each_device(local, _ins(how), outs)(x, shares, picks, whole)
    return out, (x, shares, picks, whole, gate, up)


def _backward(how: _How, kept, grad: Array) -> tuple[Array, Array, None, _Weights]:  # type: ignore[no-untyped-def]  # noqa: ANN001
    x, shares, picks, whole, gate, up = kept

    def local(x: Array, shares: Array, picks: Array, weights: _Weights, gate: Array, up: Array, grad: Array):  # type: ignore[no-untyped-def]  # noqa: ANN202
        rows = _Rows.of(picks, weights.up.shape[1])
        dealt, dealt_grad, share = rows.dealt(x), rows.dealt(grad), rows.sorted(shares)[:, None]
        hidden, of_hidden = jax.vjp(lambda gate, up: ACTIVATIONS[how.activation](gate) * up, gate, up)
        slope = grouped.into(dealt_grad, weights.down, rows.sizes)
        of_shares = (hidden.astype(jnp.float32) * slope).sum(-1)[rows.back].reshape(shares.shape)
        of_gate, of_up = of_hidden((slope * share).astype(hidden.dtype))
        back = [
            grouped.out_of(of_gate, weights.gate, rows.sizes),
            grouped.out_of(of_up, weights.up, rows.sizes),
        ]
        of_x = rows.collected(back[0] + back[1], x)
        share = share.astype(hidden.dtype)
        pairs = ((dealt, of_gate), (dealt, of_up), (dealt_grad, hidden * share))
        of_weights = _Weights(*(_of_weight(how, rows, a, b) for a, b in pairs))
        return _over_tensor(how, of_x).astype(x.dtype), sum_over("tensor", of_shares, of_shares.dtype), of_weights

    of_rows = PartitionSpec(tuple(_flat(how.inside[:2])), "tensor")
    ins = (*_ins(how), of_rows, of_rows, how.inside)
    outs = (how.stream, _picks_spec(how), _alike(how.place.stored))
    of_x, of_shares, of_weights = on_each_device(local, ins, outs)(x, shares, picks, whole, gate, up, grad)
    return of_x, of_shares, None, of_weights


_mixed.defvjp(_forward, _backward)


def _of_weight(how: _How, rows: _Rows, of_embed: Array, of_mlp: Array) -> Array:
    """Return a weight's gradient, summed over data and laid out as it is stored."""
    whole = grouped.of_weight(of_embed, of_mlp, rows.sizes, how.place.wire)
    return scatter(how.place, whole.transpose(1, 0, 2))


def _over_tensor(how: _How, x: Array) -> Array:
    """Sum [batch, position, embed] over tensor, into the stream."""
    if how.by_position:
        return scatter_over("tensor", x, how.place.wire, dimension=1)
    return sum_over("tensor", x, how.place.wire)


def _ins(how: _How) -> tuple[Any, ...]:
    return how.inside, _picks_spec(how), _picks_spec(how), _alike(how.place.whole)


def _alike(spec: Any) -> _Weights:
    """Return the partition of all three weights."""
    return _Weights(spec, spec, spec)


def _picks_spec(how: _How) -> PartitionSpec:
    return PartitionSpec(*how.inside[:2], None)


def _flat(axes: tuple[str | tuple[str, ...] | None, ...]) -> list[str]:
    """Return the mesh axes of several dimensions, in their order."""
    return [name for each in axes if each is not None for name in ((each,) if isinstance(each, str) else each)]
