"""Attention whose keys and values are made of one narrow vector for each token: multi-head latent attention.

    c   = norm(kv_a x)                      the narrow vector of a token, for all heads
    k_h = [ K_h c, turn(r) ]                r, of the same product, is one key for all heads: positions turn it alone
    v_h = V_h c
    q_h = [ q_h x, turn(...) ]              or of another narrow vector, normed likewise

From there on it is attention as elsewhere, with values of a width of their own: keys and values are made for each head,
while a model trains and in the caches of generation. Source: DeepSeek-AI, "DeepSeek-V2" (2024).

A device of `tensor` has some of the heads, and each needs the whole narrow vector. It makes only a part of that, as
wide on every device, and gathers the others: a vector is narrower than the stream, and computed nowhere twice.
"""

import math
from dataclasses import replace
from typing import Self

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from shardwise.train.attention import Cache, Ring, attend, blockwise, ring
from shardwise.train.config import GptConfig
from shardwise.train.context import attend_over_context
from shardwise.train.layout import Layout
from shardwise.train.linear import Linear
from shardwise.train.norm import Norm, normed
from shardwise.train.rotary import Rope, rotate
from shardwise.train.scores import Scores
from shardwise.train.self_attention import Attention
from shardwise.train.stream import enter
from shardwise.train.tiles import How

Array = jax.Array


class LatentAttention(eqx.Module):
    """Causal self-attention by way of narrow vectors: of keys and values and, if the model has it, of queries."""

    config: GptConfig = eqx.field(static=True)
    q: Linear | None
    q_a: Linear | None
    q_norm: Norm | None
    q_b: Linear | None
    kv_a: Linear
    kv_norm: Norm
    kv_b: Linear
    out: Linear

    @classmethod
    def init(cls, config: GptConfig, *, key: Array) -> Self:
        """Return normal weights; `out`, which adds to the residual stream, is smaller by 1 / sqrt(2 layers)."""
        keys, std = jax.random.split(key, 5), config.init_std

        def linear(number: int, In: Axis, *Out: Axis) -> Linear:
            return Linear.init(In, Out if len(Out) > 1 else Out[0], std, bias=False, key=keys[number])

        q = q_a = q_norm = q_b = None
        if config.q_rank:
            q_a, q_norm = linear(0, config.Embed, config.QDown), _norm(config, config.QLatent)
            q_b = linear(1, config.QLatent, config.Heads, config.HeadSize)
        else:
            q = linear(0, config.Embed, config.Heads, config.HeadSize)
        kv_a, kv_norm = linear(2, config.Embed, config.KvDown), _norm(config, config.KvLatent)
        kv_b = linear(3, config.KvLatent, config.Heads, config.KeyValue)
        values, small = (config.Heads, config.ValueSize), config.residual_init_std
        out = Linear.init(values, config.Embed, small, bias=False, key=keys[4])
        return cls(config, q, q_a, q_norm, q_b, kv_a, kv_norm, kv_b, out)

    def __call__(self, x: NamedArray, segments: NamedArray | None, layer: Array, layout: Layout) -> NamedArray:
        """Map {batch, position, embed} to the same; `layer` counts from 0."""
        config, scores = self.config, self._scores()
        q, k, v = self._project(x, 0, layer, layout)
        rows = None if segments is None else segments.array
        if layout.context > 1:
            how = How(config.attention, scores, layout.wire)
            mixed = attend_over_context(q, k, v, rows, how=how, strategy=layout.context_strategy)
        else:
            mixed = attend(q, k, v, rows, kernel=config.attention, scores=scores)
        return self._leaving(x, mixed, layout)

    def first(
        self, x: NamedArray, start: Array, segments: Array, layer: Array, layout: Layout
    ) -> tuple[NamedArray, Cache]:
        """Do the same for rows from positions `start` ([batch]) on, and return their keys and values too."""
        q, k, v = self._project(x, start[:, None, None], layer, layout)
        # No other kernel: they want lengths of their own.
        return self._leaving(x, blockwise(q, k, v, segments, scores=self._scores()), layout), Cache(k, v)

    def following(
        self, x: NamedArray, at: Ring, cache: Cache, recent: Cache, layer: Array, layout: Layout
    ) -> tuple[NamedArray, Cache]:
        """Do the same for one position of each row, which is added to `recent` and sees its row there and in cache."""
        q, k, v = self._project(x, at.position[:, None, None], layer, layout)
        new = zip(recent, (k, v), strict=True)
        recent = Cache(*(jax.lax.dynamic_update_slice_in_dim(old, part, at.number, 2) for old, part in new))
        return self._leaving(x, ring(q, cache, recent, at, scores=self._scores()), layout), recent

    def _project(self, x: NamedArray, start: Array | int, layer: Array, layout: Layout) -> tuple[Array, Array, Array]:
        """Return scaled queries, and keys, [batch, heads, position, head_size] each, and values, of value_size.

        They are from position `start` on.
        """
        config = self.config
        apart = config.head_size - config.rotary_dim
        q = self._queries(x, layout).rearrange(self._inside(x, config.HeadSize)).array
        q = jnp.concatenate([q[..., :apart], self._turned(q[..., apart:], start, layout)], axis=-1)
        scale = 1 / math.sqrt(config.query_pre_attn_scalar)  # in float32: bfloat16 would round the scale itself
        q = q.astype(jnp.float32) * (scale / (layer + 1) if config.scale_by_inverse_layer else scale)
        latent, shared = self._narrow(self.kv_a, self.kv_norm, x, layout)
        kv = self.kv_b(latent, layout, layout.put).rearrange(self._inside(x, config.KeyValue)).array
        shared = self._turned(jnp.expand_dims(shared, 1), start, layout)
        k = jnp.concatenate([kv[..., :apart], jnp.broadcast_to(shared, (*kv.shape[:-1], shared.shape[-1]))], axis=-1)
        placed = (
            layout.put(hax.named(part.astype(x.dtype), self._inside(x, Features))).array
            for part, Features in ((q, config.HeadSize), (k, config.HeadSize), (kv[..., apart:], config.ValueSize))
        )
        q, k, v = placed
        return q, k, v

    def _queries(self, x: NamedArray, layout: Layout) -> NamedArray:
        """Return {batch, position, heads, head_size}."""
        if self.q is not None:
            return self.q(x, layout, layout.put)
        assert self.q_a is not None
        assert self.q_norm is not None
        assert self.q_b is not None
        return self.q_b(self._narrow(self.q_a, self.q_norm, x, layout)[0], layout, layout.put)

    def _narrow(self, down: Linear, norm: Norm, x: NamedArray, layout: Layout) -> tuple[NamedArray, Array]:
        """Return the narrow vector of every token, normed, and what else `down` makes: [batch, position, ...]."""
        made = down(x, layout, layout.put).rearrange((x.resolve_axis("batch"), x.resolve_axis("position"), down.Out))
        split, whole = (layout.spec(("batch", "position", *of), layout.compute) for of in ((made.axes[-1].name,), ()))
        gathered = enter(whole, split, made.array)
        (Latent,) = hax.axis.ensure_tuple(norm.Along)
        latent = hax.named(gathered[..., : Latent.size], (*made.axes[:-1], Latent))
        return normed(norm, latent, layout), gathered[..., Latent.size :]

    def _turned(self, part: Array, start: Array | int, layout: Layout) -> Array:
        """Turn features by position: [batch, heads, position, rotary_dim]."""
        config = self.config
        rope = Rope(
            dim=config.rotary_dim, pairs=config.rotary_pairs, theta=config.rope_theta, scaling=config.rope_scaling
        )
        return rotate(part, rope, start, ways=layout.context)

    def _leaving(self, x: NamedArray, mixed: Array, layout: Layout) -> NamedArray:
        return self.out(hax.named(mixed, self._inside(x, self.config.ValueSize)), layout, layout.leave)

    def _scores(self) -> Scores:
        return Scores(softcap=self.config.attention_softcap)

    def _inside(self, x: NamedArray, Features: Axis) -> tuple[Axis, ...]:
        return (x.resolve_axis("batch"), self.config.Heads, x.resolve_axis("position"), Features)


def attention_of(config: GptConfig, *, key: Array) -> Attention | LatentAttention:
    """Return the attention that a block of this model has."""
    return LatentAttention.init(config, key=key) if config.is_latent else Attention.init(config, key=key)


def _norm(config: GptConfig, Along: Axis) -> Norm:
    return replace(Norm.init(config, Along), epsilon=config.latent_epsilon)
