"""Rotary positions, GPT-J's interleaved form over the first dimensions of each head.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021).
"""

import jax
import jax.numpy as jnp

Array = jax.Array
BASE = 10_000.0


def rotate(x: Array, rotary_dim: int, start: Array | int = 0) -> Array:
    """Rotate each pair (2i, 2i + 1) of the first `rotary_dim` features by position / BASE^(2i / rotary_dim).

    Args:
        x: [batch, heads, position, head_size].
        rotary_dim: even, at most head_size.
        start: position of the first row.

    Returns:
        The same shape and dtype; angles are computed in float32.

    """
    rotated, rest = x[..., :rotary_dim].astype(jnp.float32), x[..., rotary_dim:]
    frequency = BASE ** (-jnp.arange(0, rotary_dim, 2) / rotary_dim)
    angle = (start + jnp.arange(x.shape[2]))[:, None] * frequency
    even, odd = rotated[..., 0::2], rotated[..., 1::2]
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    pairs = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return jnp.concatenate([pairs.reshape(rotated.shape).astype(x.dtype), rest], axis=-1)
