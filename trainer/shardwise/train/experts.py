"""The feed-forward layer as a mixture of experts: a router picks a few MLPs for each token, and weighs what they add.

Beside them there may be one for all tokens, which a model needs not learn in each expert anew (Dai et al.,
"DeepSeekMoE", 2024; Qwen Team, "Qwen1.5-MoE", 2024, for its gate).

No token is left out, however many want the same expert. Either every device has a part of each expert and gathers them
for its own tokens (`train/experts_gathered.py`), or it has some and gathers tokens (`train/experts_apart.py`).

Sources: Shazeer et al., "Outrageously Large Neural Networks" (2017); Gale et al., "MegaBlocks" (2022) for products
without a capacity; Jiang et al., "Mixtral of Experts" (2024). `train/balance.py` keeps the loads even.
"""

from dataclasses import replace
from typing import Self, TypeVar

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import NamedArray

from shardwise.train import experts_apart, experts_gathered
from shardwise.train.config import GptConfig
from shardwise.train.expert_biases import Biases, biases_of_picks
from shardwise.train.expert_weights import Matrix, Places, Weights
from shardwise.train.experts_gathered import How
from shardwise.train.experts_shared import HowShared, Shared
from shardwise.train.layout import Layout
from shardwise.train.linear import RANK, Linear
from shardwise.train.mlp import Mlp
from shardwise.train.router import routed

T = TypeVar("T")
Array = jax.Array


class Experts(eqx.Module):
    """Gated MLPs side by side, and the router that picks among them; any of them may have biases."""

    config: GptConfig = eqx.field(static=True)
    router: Linear
    gate: Linear
    up: Linear
    down: Linear
    shared: Mlp | None
    """What every token goes through beside its experts, and by a sigmoid how much of that it takes."""
    shared_gate: Linear | None
    pick_bias: NamedArray | None
    """{routes}, of the choice of experts alone; see `router`."""
    loads: NamedArray | None = None
    """Zeros whose gradient counts a sequence's picks, float32 {batch, routes}; see `balance`."""

    @classmethod
    def init(cls, config: GptConfig, *, key: Array) -> Self:
        """Return normal weights; `down`, which adds to the residual stream, is smaller by 1 / sqrt(2 layers)."""
        router_key, gate_key, up_key, down_key = jax.random.split(key, 4)
        std, inside, bias = config.init_std, (config.Experts, config.Mlp), config.mlp_bias
        shared = gate = None
        if config.shared_size:
            shared = Mlp.init(config, config.Shared, key=jax.random.fold_in(key, 4))
        if config.shared_gate:
            gate = Linear.init(config.Embed, config.Gates, std, bias=False, key=jax.random.fold_in(key, 5))
        return cls(
            config,
            replace(
                Linear.init(config.Embed, config.Routes, std, bias=config.router_bias, key=router_key), is_exact=True
            ),
            Linear.init(config.Embed, inside, std, bias=bias, key=gate_key),
            Linear.init(config.Embed, inside, std, bias=bias, key=up_key),
            # Its bias is each expert's own, which those of linear layers into `embed` are not.
            replace(
                Linear.init(inside, config.Embed, config.residual_init_std, bias=False, key=down_key),
                bias=hax.zeros((config.Experts, config.Embed)) if bias else None,
            ),
            shared,
            gate,
            hax.zeros(config.Routes) if config.pick_bias else None,
        )

    def __call__(self, x: NamedArray, layout: Layout) -> NamedArray:
        """Map {batch, position, embed} to the same."""
        x = x.rearrange(("batch", "position", "embed"))
        shares, picks = self._routed(x, layout)
        how = How(
            activation=self.config.activation,
            places=_places(self, layout),
            inside=layout.spec(("batch", "position", "embed"), layout.compute),
            stream=layout.partitions(x)[1],
            by_position=layout.splits_positions(x.resolve_axis("position").size),
        )
        gate, shared = self._gate(x, layout), None
        if self.shared is not None:
            of_shared = HowShared(how.activation, _places(self.shared, layout), how.picks, how.rows)
            how = how._replace(shared=of_shared)
            shared = Shared(_weights(self.shared), None if gate is None else gate.array[..., None])
        mixed = experts_apart.mixed if layout.splits_experts else experts_gathered.mixed
        out = layout.leave(hax.named(mixed(how, x.array, shares, picks, _weights(self), shared), x.axes))
        if self.down.bias is not None:
            out = out + layout.stay(hax.named(biases_of_picks(self.down.bias.array, shares, picks, x.dtype), x.axes))
        if self.shared is not None and (bias := self.shared.down.bias) is not None:
            out = (out + (bias if gate is None else gate * bias)).astype(out.dtype)
        return out

    def _gate(self, x: NamedArray, layout: Layout) -> NamedArray | None:
        """Return how much each token takes of the MLP beside its experts, float32 {batch, position}; None: all."""
        if self.shared_gate is None:
            return None
        gate = self.shared_gate(x, layout, layout.put)["gates", 0].astype(jnp.float32)
        return hnn.sigmoid(gate.rearrange(("batch", "position")))

    def _routed(self, x: NamedArray, layout: Layout) -> tuple[Array, Array]:
        """Return the share of each token's experts in what it gets, float32, and which they are: [batch, position, k].

        In float32: a tie that rounding makes would send a token elsewhere.
        """
        exact = replace(layout, dtype=jnp.dtype(jnp.float32))
        logits = self.router(x.astype(jnp.float32), exact, layout.put)
        return routed(self.config, logits, self.pick_bias, self.loads)


def _weights(of: Mlp | Experts) -> Weights:
    assert of.gate is not None, "the job's rules check it"
    gate, up = of.gate.bias, of.up.bias
    biases = None if gate is None or up is None else Biases(gate.array, up.array)
    return Weights(_matrix(of.gate), _matrix(of.up), _matrix(of.down), biases)


def _matrix(of: Linear) -> Matrix:
    return Matrix(of.weight.array, tuple(factor.array for factor in _factors(of)))


def _factors(of: Linear) -> tuple[NamedArray, ...]:
    """Return those of an adapter: {embed, ..., rank} with its scale, and {rank, ..., mlp}."""
    if of.adapter is None:
        return ()
    a, b = of.adapter.a.weight, of.adapter.b.weight
    of_embed, of_mlp = (a, b) if "embed" in {axis.name for axis in a.axes} else (b, a)
    # In float32, as merged weights have it.
    return of_embed.astype(jnp.float32) * of.adapter.scale, of_mlp.rearrange((RANK, ...))


def _places(of: Mlp | Experts, layout: Layout) -> Places:
    """Return where gate, up and down are; all are stored alike."""
    weight, *factors = (
        layout.placement([axis.name for axis in x.axes], layout.dtype) for x in (of.up.weight, *_factors(of.up))
    )
    return Places(weight, tuple(factors), has_biases=of.up.bias is not None)


def counting(model: T, loads: Array) -> T:
    """Return a model of mixtures that count picks by the gradient of these zeros, float32 [layers, batch, experts]."""
    named, is_none = hax.named(loads, ("layers", "batch", "routes")), lambda x: x is None
    counted: T = eqx.tree_at(lambda model: model.blocks.stacked.mlp.loads, model, named, is_leaf=is_none)
    return counted


FeedForward = Mlp | Experts


def feed_forward(config: GptConfig, *, key: Array) -> FeedForward:
    """Return a block's feed-forward layer: one MLP, or a mixture of them."""
    if config.num_experts:
        return Experts.init(config, key=key)
    return Mlp.init(config, config.DenseMlp if config.num_dense_blocks else config.Mlp, key=key)
