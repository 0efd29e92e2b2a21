"""The layers of the GPT: linear, attention, MLP, and the block that joins them around the residual stream.

    sequential block:  x + attention(norm(x)),  then  x + mlp(norm(x))
    parallel block:    x + attention(norm(x)) + mlp(norm(x))           (one norm)

`shardwise.train.model` stacks the blocks. Capitals are axes, and the config owns them; no mesh axis is named here:
`Layout` lays activations out. Sources: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019);
Karamcheti et al., "Mistral" (2021) for the two attention tweaks; Wang and Komatsuzaki, "GPT-J-6B" (2021); Su et al.,
"RoFormer" (2021) for rotary positions.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Self

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import Axis, AxisSpec, NamedArray

from shardwise.train.attention import attend, plain
from shardwise.train.config import GptConfig
from shardwise.train.dropout import Dropout, Place
from shardwise.train.layout import Layout
from shardwise.train.products import Weighting, weighted
from shardwise.train.rotary import rotate

Array = jax.Array
CACHE_AXES = ("layers", "batch", "heads", "position", "head_size")


class Cache(NamedTuple):
    """The keys and values of the positions before, of every layer, in the compute dtype; for generation.

    Both are [layers, batch, heads, position, head_size] over all positions of the config, or one layer of that.
    """

    keys: Array
    values: Array


class Linear(eqx.Module):
    """A product with a weight, and a bias. The weight has `embed` first, whichever way it maps.

    It is gathered inside of the product (`products.weighted`); the bias is added in float32.
    """

    In: AxisSpec = eqx.field(static=True)
    Out: AxisSpec = eqx.field(static=True)
    weight: NamedArray
    bias: NamedArray | None

    @classmethod
    def init(cls, In: AxisSpec, Out: AxisSpec, std: float, *, bias: bool, key: Array) -> Self:
        """Return normal weights, and a bias of zeros if it has one."""
        axes = (*hax.axis.ensure_tuple(In), *hax.axis.ensure_tuple(Out))
        weight = hax.random.normal(key, sorted(axes, key=lambda axis: axis.name != "embed")) * std
        return cls(In, Out, weight, hax.zeros(Out) if bias else None)

    def __call__(self, x: NamedArray, layout: Layout, place: Callable[[NamedArray], NamedArray]) -> NamedArray:
        """Map {..., In} to {..., Out}; `place` lays out the product before the bias is added."""
        ins = [axis.name for axis in hax.axis.ensure_tuple(self.In)]
        names = [axis.name for axis in self.weight.axes]
        of_x = tuple(i for i, axis in enumerate(x.axes) if axis.name in ins)
        of_weight = tuple(names.index(x.axes[i].name) for i in of_x)
        left = [axis for axis in (*x.axes, *self.weight.axes) if axis.name not in ins]
        how = Weighting(
            dims=((of_x, of_weight), ((), ())),
            place=layout.placement(names, layout.dtype),
            ins=layout.spec([axis.name for axis in x.axes], layout.compute),
            outs=layout.spec([axis.name for axis in left], layout.compute),
        )
        out = place(hax.named(weighted(x.array, self.weight.array, how), left))
        return out if self.bias is None else (out + self.bias).astype(out.dtype)


class Attention(eqx.Module):
    """Causal self-attention with one projection for query, key and value."""

    config: GptConfig = eqx.field(static=True)
    qkv: Linear
    out: Linear

    @classmethod
    def init(cls, config: GptConfig, *, key: Array) -> Self:
        """Return normal weights; `out`, which adds to the residual stream, is smaller by 1 / sqrt(2 layers)."""
        in_key, out_key = jax.random.split(key)
        std, bias = config.init_std, config.attention_bias
        heads = (config.Heads, config.HeadSize)
        return cls(
            config,
            Linear.init(config.Embed, (config.Qkv, *heads), std, bias=bias, key=in_key),
            Linear.init(heads, config.Embed, std / math.sqrt(2 * config.num_layers), bias=bias, key=out_key),
        )

    def __call__(self, x: NamedArray, segments: NamedArray | None, layer: Array, layout: Layout) -> NamedArray:
        """Map {batch, position, embed} to the same; `layer` counts from 0."""
        config = self.config
        q, k, v = self._project(x, 0, layer, layout)
        rows = None if segments is None else segments.array
        mixed = attend(q, k, v, rows, kernel=config.attention)
        return self.out(hax.named(mixed, self._inside(x)), layout, layout.leave)

    def cached(
        self, x: NamedArray, cache: Cache, start: Array, layer: Array, layout: Layout
    ) -> tuple[NamedArray, Cache]:
        """Do the same for positions from `start` on: they see this layer's cache before them, and are added to it."""
        q, k, v = self._project(x, start, layer, layout)
        new = zip(cache, (k, v), strict=True)
        cache = Cache(*(jax.lax.dynamic_update_slice_in_dim(old, part, start, 2) for old, part in new))
        mixed = plain(q, cache.keys, cache.values, None, start=start)
        return self.out(hax.named(mixed, self._inside(x)), layout, layout.leave), cache

    def _project(self, x: NamedArray, start: Array | int, layer: Array, layout: Layout) -> tuple[Array, Array, Array]:
        """Return scaled queries, keys and values from position `start` on: [batch, heads, position, head_size] each."""
        config, inside = self.config, self._inside(x)
        # Rearranged before the split: the other way round the gradient would be assembled by three copies.
        q, k, v = self._qkv()(x, layout, layout.put).rearrange((config.Qkv, *inside)).unbind(config.Qkv)
        if config.position == "rotary":
            q, k = (hax.named(rotate(part.array, config.rotary_dim, start), inside) for part in (q, k))
        scale = 1 / math.sqrt(config.HeadSize.size)
        q = q * (scale / (layer + 1) if config.scale_by_inverse_layer else scale)
        q, k, v = (layout.put(part.astype(x.dtype)).array for part in (q, k, v))
        return q, k, v

    def _qkv(self) -> Linear:
        """Return the projection, without a gradient for the key's bias if that is exactly zero.

        The bias adds the same to all scores of a query, which softmax ignores. What rounding leaves of its gradient is
        noise, of which an optimizer that uses signs makes full steps, different on every mesh. Rotary positions rotate
        the bias from key to key, so there it counts.
        """
        bias = self.qkv.bias
        if bias is None or self.config.position == "rotary":
            return self.qkv
        is_key = hax.arange(self.config.Qkv) == 1
        return replace(self.qkv, bias=hax.where(is_key, jax.lax.stop_gradient(bias), bias))

    def _inside(self, x: NamedArray) -> tuple[Axis, ...]:
        return (x.resolve_axis("batch"), self.config.Heads, x.resolve_axis("position"), self.config.HeadSize)


class Mlp(eqx.Module):
    """Two products with a tanh GELU between."""

    up: Linear
    down: Linear

    @classmethod
    def init(cls, config: GptConfig, *, key: Array) -> Self:
        """Return normal weights; `down`, which adds to the residual stream, is smaller by 1 / sqrt(2 layers)."""
        up_key, down_key = jax.random.split(key)
        std = config.init_std
        return cls(
            Linear.init(config.Embed, config.Mlp, std, bias=True, key=up_key),
            Linear.init(config.Mlp, config.Embed, std / math.sqrt(2 * config.num_layers), bias=True, key=down_key),
        )

    def __call__(self, x: NamedArray, layout: Layout) -> NamedArray:
        """Map {batch, position, embed} to the same."""
        return self.down(hnn.gelu(self.up(x, layout, layout.put), approximate=True), layout, layout.leave)


class Block(eqx.Module):
    """One layer: attention and MLP around the residual stream."""

    norm: hnn.LayerNorm
    attention: Attention
    mlp_norm: hnn.LayerNorm | None
    mlp: Mlp

    @classmethod
    def init(cls, config: GptConfig, *, key: Array) -> Self:
        """Return a block; only the sequential one has a second norm."""
        attention_key, mlp_key = jax.random.split(key)
        return cls(
            layer_norm(config),
            Attention.init(config, key=attention_key),
            layer_norm(config) if config.block == "sequential" else None,
            Mlp.init(config, key=mlp_key),
        )

    def __call__(
        self, x: NamedArray, layer: Array, segments: NamedArray | None, dropout: Dropout, layout: Layout
    ) -> NamedArray:
        """Map {batch, position, embed}, split by position over tensor, to the same."""
        x_normed = layout.enter(normed(self.norm, x, layout))
        attended = self.attention(x_normed, segments, layer, layout)
        return self._join(x, x_normed, attended, layer, dropout, layout)

    def cached(
        self, x: NamedArray, layer: Array, cache: Cache, start: Array, layout: Layout
    ) -> tuple[NamedArray, Cache]:
        """Do the same for positions from `start` on, after this layer's cache; without dropout."""
        x_normed = layout.enter(normed(self.norm, x, layout))
        attended, cache = self.attention.cached(x_normed, cache, start, layer, layout)
        return self._join(x, x_normed, attended, layer, Dropout.none(), layout), cache

    def _join(
        self, x: NamedArray, x_normed: NamedArray, attended: NamedArray, layer: Array, dropout: Dropout, layout: Layout
    ) -> NamedArray:
        """Return the residual stream after attention and MLP, sequential or parallel."""
        attended = dropped(dropout, attended, layer, "attention")
        if self.mlp_norm is None:
            return x + attended + dropped(dropout, self.mlp(x_normed, layout), layer, "mlp")
        x = x + attended
        x_normed = layout.enter(normed(self.mlp_norm, x, layout))
        return x + dropped(dropout, self.mlp(x_normed, layout), layer, "mlp")


def layer_norm(config: GptConfig) -> hnn.LayerNorm:
    """Return a layer norm with gains of 1 and biases of 0."""
    return hnn.LayerNorm.init(config.Embed, eps=config.norm_epsilon)


def dropped(dropout: Dropout, x: NamedArray, layer: Array, place: Place) -> NamedArray:
    """Apply dropout to {batch, position, embed}."""
    x = x.rearrange(("batch", "position", "embed"))
    return hax.named(dropout.drop(x.array, layer, place), x.axes)


def normed(norm: hnn.LayerNorm, x: NamedArray, layout: Layout) -> NamedArray:
    """Apply layer norm in float32: a mean over thousands of bfloat16 values is too inexact."""
    out: NamedArray = layout.whole(norm)(x.astype(jnp.float32)).astype(x.dtype)
    return out
