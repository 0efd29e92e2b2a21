"""The norms: layer norm, and RMS norm with gains counted from 0 or from 1. All are computed in float32.

Ba et al., "Layer Normalization" (2016); Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
"""

from typing import Self

import equinox as eqx
import haliax as hax
import jax.numpy as jnp
from haliax import AxisSpec, NamedArray

from shardwise.train.config import GptConfig
from shardwise.train.layout import Layout


class Norm(eqx.Module):
    """Scale the vectors along an axis, or along several joined, to the same length, then multiply by gains."""

    Along: AxisSpec = eqx.field(static=True)
    epsilon: float = eqx.field(static=True)
    offset: float = eqx.field(static=True)
    """What is added to the stored gains."""
    weight: NamedArray
    bias: NamedArray | None
    """Of a layer norm, which also takes the mean away; an RMS norm has none."""

    @classmethod
    def init(cls, config: GptConfig, Along: AxisSpec) -> Self:
        """Return the model's kind of norm, whose gains are 1 and biases 0."""
        offset = 1.0 if config.norm == "rms-unit-offset" else 0.0
        gains = hax.zeros(Along) if offset else hax.ones(Along)
        return cls(Along, config.norm_epsilon, offset, gains, hax.zeros(Along) if config.norm == "layer" else None)

    def __call__(self, x: NamedArray) -> NamedArray:
        """Map float32 {..., Along} to the same."""
        if self.bias is None:
            length = hax.rsqrt(hax.mean(hax.square(x), self.Along) + self.epsilon)
            gains = self.weight + self.offset if self.offset else self.weight
            return x * length * gains
        mean = x.mean(self.Along)
        length = hax.rsqrt(x.var(self.Along) + self.epsilon)
        out: NamedArray = self.weight * ((x - mean) * length) + self.bias
        return out


def normed(norm: Norm, x: NamedArray, layout: Layout) -> NamedArray:
    """Apply a norm in float32: a mean over thousands of bfloat16 values is too inexact."""
    out: NamedArray = layout.whole(norm)(x.astype(jnp.float32)).astype(x.dtype)
    return out
