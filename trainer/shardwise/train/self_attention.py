"""Attention as a layer: queries, keys and values of the normed stream, turned and scaled, and the way back.

Sources: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019); Karamcheti et al., "Mistral"
(2021) for scores by layer; Su et al., "RoFormer" (2021) for rotary positions; Ainslie et al., "GQA" (2023) for shared
heads of keys and values; Gemma Team, "Gemma 2" (2024) for windows in turn and bounded scores; OLMo Team, "2 OLMo 2
Furious" (2025) for norms of all heads together.
"""

import math
from dataclasses import replace
from typing import Self

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from shardwise.train.attention import attend, blockwise
from shardwise.train.caches import Cache, Ring, longer, ring
from shardwise.train.config import GptConfig
from shardwise.train.context import attend_over_context
from shardwise.train.layout import Layout
from shardwise.train.linear import Linear
from shardwise.train.norm import Norm, normed
from shardwise.train.rotary import Rope, rotate
from shardwise.train.scores import Scores
from shardwise.train.tiles import How

Array = jax.Array


class Attention(eqx.Module):
    """Causal self-attention: one projection for query, key and value, or one for queries and one for shared heads."""

    config: GptConfig = eqx.field(static=True)
    qkv: Linear | None
    q: Linear | None
    kv: Linear | None
    q_norm: Norm | None
    k_norm: Norm | None
    out: Linear
    sinks: NamedArray | None
    """A logit of each head that joins every softmax of its queries; see `train/sinks.py`."""

    @classmethod
    def init(cls, config: GptConfig, *, key: Array) -> Self:
        """Return normal weights; `out`, which adds to the residual stream, is smaller by 1 / sqrt(2 layers)."""
        in_key, out_key = jax.random.split(key)
        std, bias = config.init_std, config.attention_bias
        heads, kv_heads = (config.Heads, config.HeadSize), (config.KvHeads, config.HeadSize)
        qkv = q = kv = None
        if config.is_grouped:
            q_key, kv_key = jax.random.split(in_key)
            q = Linear.init(config.Embed, heads, std, bias=bias, key=q_key)
            kv = Linear.init(config.Embed, (config.Kv, *kv_heads), std, bias=bias, key=kv_key)
        else:
            qkv = Linear.init(config.Embed, (config.Qkv, *heads), std, bias=bias, key=in_key)
        q_norm, k_norm = (Norm.init(config, along) if config.qk_norm else None for along in config.normed_of_qk)
        small = config.residual_init_std
        out = Linear.init(heads, config.Embed, small, bias=config.attention_out_bias, key=out_key)
        sinks = hax.zeros(config.Heads) if config.attention_sinks else None
        return cls(config, qkv, q, kv, q_norm, k_norm, out, sinks)

    def __call__(self, x: NamedArray, segments: NamedArray | None, layer: Array, layout: Layout) -> NamedArray:
        """Map {batch, position, embed} to the same; `layer` counts from 0."""
        config = self.config
        q, k, v = self._project(x, 0, layer, layout)
        rows = None if segments is None else segments.array
        if layout.context > 1:
            how = How(config.attention, self._scores(layer), layout.wire)
            mixed = attend_over_context(q, k, v, rows, how=how, strategy=layout.context_strategy, sinks=self._sinks)
        else:
            mixed = attend(q, k, v, rows, kernel=config.attention, scores=self._scores(layer), sinks=self._sinks)
        return self.out(hax.named(mixed, self._inside(x, config.Heads)), layout, layout.leave)

    def first(
        self, x: NamedArray, start: Array, segments: Array, layer: Array, layout: Layout
    ) -> tuple[NamedArray, Cache]:
        """Do the same for rows from positions `start` ([batch]) on, and return their keys and values too."""
        q, k, v = self._project(x, start[:, None, None], layer, layout)
        # No other kernel: they want lengths of their own.
        mixed = blockwise(q, k, v, segments, scores=self._scores(layer), sinks=self._sinks)
        return self.out(hax.named(mixed, self._inside(x, self.config.Heads)), layout, layout.leave), Cache(k, v)

    def following(
        self, x: NamedArray, at: Ring, cache: Cache, recent: Cache, layer: Array, layout: Layout
    ) -> tuple[NamedArray, Cache]:
        """Do the same for one position of each row, which is added to `recent` and sees its row there and in cache."""
        q, k, v = self._project(x, at.position[:, None, None], layer, layout)
        recent = longer(recent, Cache(k, v), at)
        mixed = ring(q, cache, recent, at, scores=self._scores(layer), sinks=self._sinks)
        return self.out(hax.named(mixed, self._inside(x, self.config.Heads)), layout, layout.leave), recent

    def _project(self, x: NamedArray, start: Array | int, layer: Array, layout: Layout) -> tuple[Array, Array, Array]:
        """Return scaled queries, keys and values from position `start` on: [batch, heads, position, head_size] each."""
        config = self.config
        q, k, v = self._split(x, layer, layout)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = normed(self.q_norm, q, layout), normed(self._without_bias(self.k_norm, layer), k, layout)
        if config.position == "rotary":
            rope = Rope(
                dim=config.rotary_dim,
                pairs=config.rotary_pairs,
                theta=config.rope_theta,
                local_theta=config.local_rope_theta,
                scaling=config.rope_scaling,
                seq_len=config.seq_len,
            )
            is_local, is_turned, ways = self._is_local(layer), self._is_turned(layer), layout.context
            q, k = (
                hax.named(rotate(part.array, rope, start, is_local, is_turned=is_turned, ways=ways), part.axes)
                for part in (q, k)
            )
        scale = 1 / math.sqrt(config.query_pre_attn_scalar)  # in float32: bfloat16 would round the scale itself
        q = q.astype(jnp.float32) * (scale / (layer + 1) if config.scale_by_inverse_layer else scale)
        q, k, v = (layout.put(part.astype(x.dtype)).array for part in (q, k, v))
        return q, k, v

    def _split(self, x: NamedArray, layer: Array, layout: Layout) -> tuple[NamedArray, NamedArray, NamedArray]:
        """Return queries, keys and values: {batch, heads or kv_heads, position, head_size}."""
        config, inside = self.config, self._inside(x, self.config.KvHeads)
        # Rearranged before the split: the other way round the gradient would be assembled by three copies.
        if self.qkv is not None:
            inside = self._inside(x, config.Heads)
            qkv = self._without_key_bias(self.qkv, config.Qkv, 1, layer)(x, layout, layout.put)
            q, k, v = qkv.rearrange((config.Qkv, *inside)).unbind(config.Qkv)
            return q, k, v
        assert self.q is not None
        assert self.kv is not None
        kv = self._without_key_bias(self.kv, config.Kv, 0, layer)(x, layout, layout.put)
        k, v = kv.rearrange((config.Kv, *inside)).unbind(config.Kv)
        return self.q(x, layout, layout.put).rearrange(self._inside(x, config.Heads)), k, v

    def _without_key_bias(self, projection: Linear, Parts: Axis, key: int, layer: Array) -> Linear:
        """Return a projection whose part `key` is the keys, without a gradient for their bias where it is exactly zero.

        The bias adds the same to all scores of a query, which softmax ignores. What rounding leaves of its gradient is
        noise, of which an optimizer that uses signs makes full steps, different on every mesh. Rotary positions turn
        features from key to key, so there it counts; and it does where norms or a bound change what it adds.
        """
        if (bias := projection.bias) is None or self.config.qk_norm:
            return projection
        return replace(projection, bias=hax.where(hax.arange(Parts) == key, self._without_noise(bias, layer), bias))

    def _without_bias(self, norm: Norm, layer: Array) -> Norm:
        """Return the norm of the keys likewise: what it adds comes after what it divides by."""
        return norm if norm.bias is None else replace(norm, bias=self._without_noise(norm.bias, layer))

    def _without_noise(self, bias: NamedArray, layer: Array) -> NamedArray:
        """Return a bias of keys without a gradient for its features that do not count."""
        counts = hax.arange(self.config.HeadSize) < self.config.same_for_all_keys_counts
        is_turned = self._is_turned(layer)
        if is_turned is not None and not self.config.same_everywhere_counts:
            counts = counts & is_turned
        return hax.where(counts, bias, jax.lax.stop_gradient(bias))

    def _scores(self, layer: Array) -> Scores:
        """Return what becomes of this layer's scores."""
        config = self.config
        window = config.sliding_window
        if window is not None and window >= config.seq_len:
            window = None
        in_turn = window is not None and config.sliding_window_pattern is not None
        return Scores(window, self._is_local(layer) if in_turn else None, config.attention_softcap)

    @property
    def _sinks(self) -> Array | None:
        return None if self.sinks is None else self.sinks.array

    def _is_local(self, layer: Array) -> Array:
        """Return whether the layer has a sliding window."""
        config = self.config
        if config.sliding_window is None or config.sliding_window_pattern is None:
            return jnp.asarray(config.sliding_window is not None)
        return jnp.asarray((layer + 1) % config.sliding_window_pattern != 0)

    def _is_turned(self, layer: Array) -> Array | None:
        """Return whether rotary positions turn the layer's queries and keys; None: those of every layer."""
        pattern = self.config.rotary_pattern
        return None if pattern is None else jnp.asarray((layer + 1) % pattern != 0)

    def _inside(self, x: NamedArray, Heads: Axis) -> tuple[Axis, ...]:
        return (x.resolve_axis("batch"), Heads, x.resolve_axis("position"), self.config.HeadSize)
