"""The product with a weight that all layers are made of."""

from collections.abc import Callable
from dataclasses import replace
from typing import Self

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import AxisSpec, NamedArray

from shardwise.train.layout import Layout
from shardwise.train.products import Weighting, weighted

Array = jax.Array
RANK = "rank"
"""The axis between the factors of an adapter."""


class Linear(eqx.Module):
    """A product with a weight, and a bias. The weight has `embed` first, whichever way it maps.

    It is gathered inside of the product (`products.weighted`); the bias is added in float32.
    """

    In: AxisSpec = eqx.field(static=True)
    Out: AxisSpec = eqx.field(static=True)
    weight: NamedArray
    bias: NamedArray | None
    adapter: "Adapter | None" = None
    is_exact: bool = eqx.field(static=True, default=False)
    """Whether float32 is multiplied as it is where the rest is bfloat16: a TPU would take one pass of bfloat16."""

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
            precision=jax.lax.Precision.HIGHEST if self.is_exact else None,
            form=None if self.is_exact else layout.form,
        )
        out = place(hax.named(weighted(x.array, self.weight.array, how), left))
        if self.adapter is not None:
            out = out + self.adapter(x, layout, place)
        return out if self.bias is None else (out + self.bias).astype(out.dtype)


class Adapter(eqx.Module):
    """What is added to the product with a weight that stays as it is; see `train/lora.py`."""

    scale: float = eqx.field(static=True)
    a: Linear
    b: Linear

    def __call__(self, x: NamedArray, layout: Layout, place: Callable[[NamedArray], NamedArray]) -> NamedArray:
        """Map {..., In} to {..., Out} by way of the rank."""
        layout = replace(layout, form=None)  # what is added is small beside what it costs to round it
        narrow = self.a(x, layout, layout.put)
        # In float32, as merged weights have it: bfloat16 would round the scale itself.
        return self.b((narrow.astype(jnp.float32) * self.scale).astype(narrow.dtype), layout, place)
