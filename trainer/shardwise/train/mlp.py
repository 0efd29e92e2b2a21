"""The feed-forward layer of a block.

Sources of the gated forms: Shazeer, "GLU Variants Improve Transformer" (2020); OpenAI, "gpt-oss-120b & gpt-oss-20b
Model Card" (2025) for the clamped one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import equinox as eqx
import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from shardwise.train.config import GptConfig
from shardwise.train.layout import Layout
from shardwise.train.linear import Linear

Array = jax.Array
Activation = Callable[[Any], Any]
"""Of named arrays, and of plain ones."""


def _in_float32(exact: Activation) -> Activation:
    """Return an activation that is computed in float32 and rounded once: bfloat16 would round each of its constants.

    The backward pass computes it again, from the input alone, instead of keeping float32 numbers.
    """

    def activate(x: Any) -> Any:
        if x.dtype == jnp.float32:
            return exact(x)
        rounded = lambda x: exact(x.astype(jnp.float32)).astype(x.dtype)  # noqa: E731
        return jax.checkpoint(rounded, prevent_cse=False)(x)

    return activate


CLAMPED = "swiglu-clamped"
_CLAMP, _STEEPNESS = 7.0, 1.702


def _clamped_silu(gate: Any) -> Any:
    """Return gate x sigmoid(1.702 gate), of gates up to 7."""
    held = jax.tree.map(lambda x: jnp.minimum(x, _CLAMP), gate)
    return held * hnn.sigmoid(_STEEPNESS * held)


ACTIVATIONS: dict[str, Activation] = {
    "gelu": _in_float32(partial(hnn.gelu, approximate=True)),
    "gelu-exact": _in_float32(partial(hnn.gelu, approximate=False)),
    "swiglu": _in_float32(hnn.silu),
    "geglu": _in_float32(partial(hnn.gelu, approximate=True)),
    CLAMPED: _in_float32(_clamped_silu),
}
"""By the config's names; of the gated forms what becomes of the gate."""


def gated(activation: str, gate: Any, up: Any) -> Any:
    """Return what gate and up make together; named arrays, or plain ones."""
    if activation == CLAMPED:
        up = jax.tree.map(lambda x: jnp.clip(x, -_CLAMP, _CLAMP) + 1, up)
    return ACTIVATIONS[activation](gate) * up


class Mlp(eqx.Module):
    """Two products with an activation between, which a third product may gate."""

    config: GptConfig = eqx.field(static=True)
    gate: Linear | None
    up: Linear
    down: Linear

    @classmethod
    def init(cls, config: GptConfig, Inside: Axis, *, key: Array) -> Self:
        """Return normal weights; `down`, which adds to the residual stream, is smaller by 1 / sqrt(2 layers)."""
        up_key, down_key = jax.random.split(key)
        std, bias = config.init_std, config.mlp_bias
        gate = None
        if config.is_gated:
            gate_key, up_key = jax.random.split(up_key)
            gate = Linear.init(config.Embed, Inside, std, bias=bias, key=gate_key)
        small = config.residual_init_std
        return cls(
            config,
            gate,
            Linear.init(config.Embed, Inside, std, bias=bias, key=up_key),
            Linear.init(Inside, config.Embed, small, bias=bias, key=down_key),
        )

    def __call__(self, x: NamedArray, layout: Layout) -> NamedArray:
        """Map {batch, position, embed} to the same."""
        activation = self.config.activation
        up = self.up(x, layout, layout.put)
        if self.gate is None:
            hidden = ACTIVATIONS[activation](up)
        else:
            hidden = gated(activation, self.gate(x, layout, layout.put), up)
        return self.down(hidden, layout, layout.leave)
