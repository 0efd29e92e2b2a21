"""Rotary positions: pairs of each head's features are turned by an angle that grows with the position.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021). The scalings stretch the angles over
more positions: linear (Chen et al., "Extending Context Window", 2023), Llama 3.1's, YaRN (Peng et al., 2023), and
LongRoPE (Ding et al., 2024).
"""

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from shardwise.job.spec import RopeScaling
from shardwise.train.zigzag import zigzag

Array = jax.Array
BASE = 10_000.0


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Which features are turned together, and how fast."""

    dim: int
    """How many of a head's first features are turned; even."""
    pairs: Literal["interleaved", "half"] = "interleaved"
    """Whether feature 2i is turned with 2i + 1 (GPT-J), or i with i + dim / 2 (GPT-NeoX)."""
    theta: float = BASE
    """Pair i turns by position / theta^(2i / dim)."""
    local_theta: float | None = None
    """The same in blocks with a sliding window, which no scaling stretches; None: they are as the others."""
    scaling: RopeScaling | None = None
    """Resolved: how the angles are stretched."""
    seq_len: int = 0
    """Positions of a sequence, for LongRoPE, which has other factors for long ones. It goes by the model's, never by
    those of a text: the keys of a text do not change while it grows."""


def rotate(
    x: Array,
    rope: Rope,
    start: Array | int = 0,
    is_local: Array | None = None,
    *,
    is_turned: Array | None = None,
    ways: int = 1,
) -> Array:
    """Turn each pair of the first features.

    Args:
        x: [batch, heads, position, head_size].
        rope: whose `dim` is at most head_size.
        start: position of the first row; an array that broadcasts to [batch, heads, position] if sequences differ.
        is_local: bool scalar, whether the block has a sliding window; None: that makes no difference.
        is_turned: bool scalar, whether the block knows positions at all: in the others x stays as it is; None: it does.
        ways: the rows are in the order of `zigzag` for so many devices.

    Returns:
        The same shape and dtype; angles are computed in float32.

    """
    rotated, rest = x[..., : rope.dim].astype(jnp.float32), x[..., rope.dim :]
    frequency = _frequency(rope, rope.theta)
    gain: Array | float | None = None
    if rope.scaling is not None:
        frequency, gain = _scaled(frequency, rope), rope.scaling.attention_factor
    if is_local is not None and rope.local_theta is not None:
        frequency = jnp.where(is_local, _frequency(rope, rope.local_theta), frequency)
        gain = None if gain is None else jnp.where(is_local, 1, gain)
    if is_turned is not None:  # by an angle of zero the very same numbers come out
        frequency = jnp.where(is_turned, frequency, 0)
        gain = None if gain is None else jnp.where(is_turned, gain, 1)
    angle = (start + zigzag(jnp.arange(x.shape[2]), ways))[..., None] * frequency
    half = rope.dim // 2
    if rope.pairs == "interleaved":
        even, odd = rotated[..., 0::2], rotated[..., 1::2]
    else:
        even, odd = rotated[..., :half], rotated[..., half:]
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    if gain is not None:
        sin, cos = sin * gain, cos * gain
    turned = [even * cos - odd * sin, odd * cos + even * sin]
    joined = jnp.stack(turned, axis=-1) if rope.pairs == "interleaved" else jnp.concatenate(turned, axis=-1)
    return jnp.concatenate([joined.reshape(rotated.shape).astype(x.dtype), rest], axis=-1)


def _frequency(rope: Rope, theta: float) -> Array:
    """Return the radians per position of each pair, [dim / 2]."""
    frequency: Array = theta ** (-jnp.arange(0, rope.dim, 2) / rope.dim)
    return frequency


def _scaled(frequency: Array, rope: Rope) -> Array:
    """Return the frequencies of a stretched model."""
    scaling = rope.scaling
    assert scaling is not None
    if scaling.kind == "longrope":
        assert scaling.original_seq_len is not None, "the job is resolved"
        is_long = rope.seq_len > scaling.original_seq_len
        return frequency / jnp.asarray(scaling.long_factors if is_long else scaling.short_factors, frequency.dtype)
    slow = frequency / scaling.factor
    if scaling.kind == "linear":
        return slow
    assert scaling.original_seq_len is not None, "the job is resolved"
    if scaling.kind == "llama3":
        turns = scaling.original_seq_len * frequency / (2 * math.pi)
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        kept = jnp.clip((turns - low) / (high - low), 0, 1)
    else:
        kept = _yarn_ramp(rope.dim, rope.theta, scaling)
    return kept * frequency + (1 - kept) * slow


def _yarn_ramp(dim: int, theta: float, scaling: RopeScaling) -> Array:
    """Return which share of each pair's frequency YaRN keeps: 1 for the fast pairs, 0 for the slow ones, [dim / 2]."""
    assert scaling.original_seq_len is not None, "the job is resolved"

    def pair_of(turns: float) -> float:
        """Return the pair, not whole, that makes so many turns over the first training's positions."""
        return dim * math.log(scaling.original_seq_len / (turns * 2 * math.pi)) / (2 * math.log(theta))  # type: ignore[operator]

    first, last = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    width = (last - first) or 0.001  # as the authors do, for a ramp without a width
    return 1 - jnp.clip((jnp.arange(dim // 2) - first) / width, 0, 1)
