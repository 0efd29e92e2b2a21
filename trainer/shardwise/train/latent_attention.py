"""Attention whose keys and values are made of one narrow vector for each token: multi-head latent attention.

    c   = norm(kv_a x)                      the narrow vector of a token, for all heads
    k_h = [ K_h c, turn(r) ]                r, of the same product, is one key for all heads: positions turn it alone
    v_h = V_h c
    q_h = [ q_h x, turn(...) ]              or of another narrow vector, normed likewise

From there on it is attention as elsewhere, with values of a width of their own: keys and values are made for each head.
Generation keeps the narrow vectors alone (`train/latent_decoding.py`). Source: DeepSeek-AI, "DeepSeek-V2" (2024).

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

from shardwise.train.attention import attend, blockwise
from shardwise.train.caches import Cache, Ring, longer, ring
from shardwise.train.config import GptConfig
from shardwise.train.context import attend_over_context
from shardwise.train.latent_decoding import Apart
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
    kv_b: Linear | Apart
    """Keys and values in one product; in two after `for_generation`."""
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
        q, k, v = self._project(x, layer, layout)
        rows = None if segments is None else segments.array
        if layout.context > 1:
            how = How(config.attention, scores, layout.wire)
            mixed = attend_over_context(q, k, v, rows, how=how, strategy=layout.context_strategy)
        else:
            mixed = attend(q, k, v, rows, kernel=config.attention, scores=scores)
        return self._leaving(x, mixed, layout)

    def for_generation(self) -> Self:
        """Return the attention for `first` and `following`."""
        assert isinstance(self.kv_b, Linear)
        return replace(self, kv_b=Apart.of(self.kv_b, self.config.KeySize, self.config.ValueSize))

    def first(
        self, x: NamedArray, start: Array, segments: Array, layer: Array, layout: Layout
    ) -> tuple[NamedArray, Cache]:
        """Do the same for rows from positions `start` ([batch]) on, and return their narrow vectors too."""
        assert isinstance(self.kv_b, Apart)
        config, since = self.config, start[:, None, None]
        q = self._queries(x, since, layer, layout)
        latent, shared = self._vectors(x, since, layout)
        apart, v = self.kv_b.made(latent, layout)
        k = _joined(apart.rearrange(self._inside(x, config.KeySize)).array, shared)
        v = v.rearrange(self._inside(x, config.ValueSize))
        q, k = (self._placed(x, part, config.HeadSize, layout) for part in (q, k))
        # No other kernel: they want lengths of their own.
        mixed = blockwise(q, k, layout.put(v).array, segments, scores=self._scores())
        return self._leaving(x, mixed, layout), _cache(latent, shared)

    def following(
        self, x: NamedArray, at: Ring, cache: Cache, recent: Cache, layer: Array, layout: Layout
    ) -> tuple[NamedArray, Cache]:
        """Do the same for one position of each row, which is added to `recent` and sees its row there and in cache."""
        assert isinstance(self.kv_b, Apart)
        config, since, apart = self.config, at.position[:, None, None], self.config.KeySize.size
        q = self._queries(x, since, layer, layout).astype(x.dtype)
        of_latent = self.kv_b.into_queries(hax.named(q[..., :apart], self._inside(x, config.KeySize)), layout)
        q = jnp.concatenate([of_latent.array, q[..., apart:]], axis=-1)
        recent = longer(recent, _cache(*self._vectors(x, since, layout)), at)
        mixed = ring(self._placed(x, q, Axis("narrow", q.shape[-1]), layout), cache, recent, at, scores=self._scores())
        # The turned key is mixed too, and left out after: a slice of the cache would be a copy of it.
        latent = hax.named(mixed[..., : config.kv_rank], self._inside(x, config.KvLatent))
        return self._leaving(x, self.kv_b.out_of_mixed(latent, layout).array, layout), recent

    def _project(self, x: NamedArray, layer: Array, layout: Layout) -> tuple[Array, Array, Array]:
        """Return scaled queries, and keys, [batch, heads, position, head_size] each, and values, of value_size."""
        assert isinstance(self.kv_b, Linear)
        config, apart = self.config, self.config.KeySize.size
        q = self._queries(x, 0, layer, layout)
        latent, shared = self._narrow(self.kv_a, self.kv_norm, x, layout)
        kv = self.kv_b(latent, layout, layout.put).rearrange(self._inside(x, config.KeyValue)).array
        shared = self._turned(jnp.expand_dims(shared, 1), 0, layout)
        k = _joined(kv[..., :apart], shared)
        parts = (q, config.HeadSize), (k, config.HeadSize), (kv[..., apart:], config.ValueSize)
        q, k, v = (self._placed(x, part, Features, layout) for part, Features in parts)
        return q, k, v

    def _queries(self, x: NamedArray, start: Array | int, layer: Array, layout: Layout) -> Array:
        """Return scaled queries from position `start` on, float32 [batch, heads, position, head_size]."""
        config, apart = self.config, self.config.KeySize.size
        q = self._of_heads(x, layout).rearrange(self._inside(x, config.HeadSize)).array
        q = jnp.concatenate([q[..., :apart], self._turned(q[..., apart:], start, layout)], axis=-1)
        scale = 1 / math.sqrt(config.query_pre_attn_scalar)  # in float32: bfloat16 would round the scale itself
        return q.astype(jnp.float32) * (scale / (layer + 1) if config.scale_by_inverse_layer else scale)

    def _vectors(self, x: NamedArray, start: Array, layout: Layout) -> tuple[NamedArray, Array]:
        """Return the narrow vectors, and the key of all heads, turned: [batch, 1, position, rotary_dim]."""
        latent, shared = self._narrow(self.kv_a, self.kv_norm, x, layout)
        return latent, self._turned(jnp.expand_dims(shared, 1), start, layout)

    def _of_heads(self, x: NamedArray, layout: Layout) -> NamedArray:
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
            dim=config.rotary_dim,
            pairs=config.rotary_pairs,
            theta=config.rope_theta,
            scaling=config.rope_scaling,
            seq_len=config.seq_len,
        )
        return rotate(part, rope, start, ways=layout.context)

    def _leaving(self, x: NamedArray, mixed: Array, layout: Layout) -> NamedArray:
        return self.out(hax.named(mixed, self._inside(x, self.config.ValueSize)), layout, layout.leave)

    def _placed(self, x: NamedArray, part: Array, Features: Axis, layout: Layout) -> Array:
        """Lay out what the heads have, [batch, heads, position, ...], in the compute dtype."""
        placed: Array = layout.put(hax.named(part.astype(x.dtype), self._inside(x, Features))).array
        return placed

    def _scores(self) -> Scores:
        return Scores(softcap=self.config.attention_softcap)

    def _inside(self, x: NamedArray, Features: Axis) -> tuple[Axis, ...]:
        return (x.resolve_axis("batch"), self.config.Heads, x.resolve_axis("position"), Features)


def attention_of(config: GptConfig, *, key: Array) -> Attention | LatentAttention:
    """Return the attention that a block of this model has."""
    return LatentAttention.init(config, key=key) if config.is_latent else Attention.init(config, key=key)


def _joined(apart: Array, shared: Array) -> Array:
    """Join each head's own part of a key with that of all: [batch, heads, position, head_size]."""
    return jnp.concatenate([apart, jnp.broadcast_to(shared, (*apart.shape[:-1], shared.shape[-1]))], axis=-1)


def _cache(latent: NamedArray, shared: Array) -> Cache:
    """Return what a layer keeps: [batch, 1, position, kv_rank + rotary_dim]."""
    c = latent.rearrange(("batch", "position", "kv_latent")).array
    return Cache(jnp.concatenate([jnp.expand_dims(c, 1), shared.astype(c.dtype)], axis=-1))


def _norm(config: GptConfig, Along: Axis) -> Norm:
    return replace(Norm.init(config, Along), epsilon=config.latent_epsilon)
