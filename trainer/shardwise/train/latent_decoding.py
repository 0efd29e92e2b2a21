"""Latent attention while a model generates: the caches hold narrow vectors, which all heads read.

    q_h . [ K_h c, r ] = [ K_h^T q_h, q_h' ] . [ c, r ]      what makes keys is multiplied into the queries instead,
    sum of p V_h c     = V_h (sum of p c)                    and what makes values into what a head has mixed

So a token leaves one vector of `kvRank` + `rotaryDim` numbers in a layer, alike on all devices of `tensor`, whatever
the number of heads. A window's first positions attend as in training: keys and values of each head take less
arithmetic there. Source: DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1.2.
"""

from dataclasses import replace
from typing import Self

import equinox as eqx
import haliax as hax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from shardwise.train.layout import Layout
from shardwise.train.linear import Linear


class Apart(eqx.Module):
    """The product that keys and values of all heads are made by, in two."""

    to_keys: Linear
    to_values: Linear

    @classmethod
    def of(cls, joined: Linear, KeySize: Axis, ValueSize: Axis) -> Self:
        """Take the product apart, with its adapter."""
        parts = (slice(KeySize.size), KeySize), (slice(KeySize.size, None), ValueSize)
        return cls(*(_part(joined, of, Features) for of, Features in parts))

    def made(self, latent: NamedArray, layout: Layout) -> tuple[NamedArray, NamedArray]:
        """Return the keys and values of {batch, position, kv_latent}: {batch, position, heads, ...} each."""
        return self.to_keys(latent, layout, layout.put), self.to_values(latent, layout, layout.put)

    def into_queries(self, q: NamedArray, layout: Layout) -> NamedArray:
        """Map {batch, heads, position, key_size} to {batch, heads, position, kv_latent}."""
        factors = _factors(self.to_keys, layout)
        return _through(q, *factors[:1], *reversed(factors[1:]), scale=_scale(self.to_keys))

    def out_of_mixed(self, mixed: NamedArray, layout: Layout) -> NamedArray:
        """Map {batch, heads, position, kv_latent} to {batch, heads, position, value_size}."""
        return _through(mixed, *_factors(self.to_values, layout), scale=_scale(self.to_values))


def _part(joined: Linear, of: slice, Features: Axis) -> Linear:
    """Return the part of a product of keys and values that makes these features of each head."""

    def taken(weight: NamedArray) -> NamedArray:
        return weight["key_value", of].rename({"key_value": Features.name})

    Heads, _ = hax.axis.ensure_tuple(joined.Out)
    Out, adapter = (Heads, Features), joined.adapter
    if adapter is not None:
        adapter = replace(adapter, b=replace(adapter.b, Out=Out, weight=taken(adapter.b.weight)))
    return replace(joined, Out=Out, weight=taken(joined.weight), adapter=adapter)


def _scale(linear: Linear) -> float:
    return 1.0 if linear.adapter is None else linear.adapter.scale


def _factors(linear: Linear, layout: Layout) -> tuple[NamedArray, ...]:
    """Return the weight, and the two of its adapter if it has one."""
    adapter = linear.adapter
    weights = (linear.weight,) if adapter is None else (linear.weight, adapter.a.weight, adapter.b.weight)
    return tuple(layout.whole(weight, layout.dtype) for weight in weights)


def _through(x: NamedArray, weight: NamedArray, *adapter: NamedArray, scale: float) -> NamedArray:
    """Multiply {batch, heads, position, ...} by each head's own part of a weight, whichever way it maps.

    As in the product itself what an adapter adds is computed apart: a weight of 16 bits would lose most of it.
    """
    out = _product(x, weight)
    if not adapter:
        return out
    into, onto = adapter
    narrow = _product(x, into)
    narrow = hax.named((narrow.array.astype(jnp.float32) * scale).astype(x.dtype), narrow.axes)
    return out + _product(narrow, onto)


def _product(x: NamedArray, weight: NamedArray) -> NamedArray:
    """Sum over the last axis of x, head by head."""
    return hax.dot(x, weight, axis=x.axes[-1]).rearrange(("batch", "heads", "position", ...))
