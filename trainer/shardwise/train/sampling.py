"""How a token is chosen from a model's logits, on the device."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.protocol.errors import UsageError

Array = jax.Array
_COLDEST = float(np.finfo(np.float32).tiny)
_BITS_OF_ONE = 0x3F800000
_PART = 128


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The settings, which are part of the compiled program: first the temperature, then top-k, then top-p."""

    temperature: float = 1.0
    """Logits are divided by it; 0 takes the most likely token."""
    top_k: int | None = None
    """Choose among this many of the most likely tokens; None: among all."""
    top_p: float | None = None
    """Choose among the fewest of the most likely tokens that together have this probability; None: among all."""

    def __post_init__(self) -> None:
        """Refuse settings out of range: UsageError."""
        if not 0 <= self.temperature < math.inf:
            raise UsageError(f"temperature: given {self.temperature}, expected 0 (the most likely token) or more")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top-k: given {self.top_k}, expected at least 1; leave it out to choose among all tokens")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"top-p: given {self.top_p}, expected more than 0 and at most 1, which keeps all tokens")

    def choose(self, logits: Array, random: Array) -> Array:
        """Choose a token for each row: int32 [batch].

        Args:
            logits: float32 [batch, vocab], finite.
            random: float32 [batch], uniform in [0, 1); a row's token depends on its own alone.

        """
        top = logits.max(-1, keepdims=True)
        if self.temperature == 0:
            # Not argmax: for CPUs XLA makes one instruction of it for each entry, and of this one for many.
            entries = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
            return jnp.where(logits == top, entries, logits.shape[1]).min(-1)
        # Less the maximum first: then no temperature is too small for float32.
        scaled, tokens = (logits - top) / max(self.temperature, _COLDEST), None
        if self.top_k is not None and self.top_k < scaled.shape[1]:
            scaled, tokens = jax.lax.top_k(scaled, self.top_k)
        weights = jnp.exp(scaled)
        if self.top_p is not None and self.top_p < 1:
            weights = _likeliest(weights, self.top_p)
        drawn = _draw(weights, random)
        return drawn if tokens is None else jnp.take_along_axis(tokens, drawn[:, None], axis=1)[:, 0]


def _likeliest(weights: Array, share: float) -> Array:
    """Keep the fewest of the largest of [batch, vocab] that are this share of a row together, and those equal to them.

    The smallest weight that is kept is found by halving: each half is one pass over the row, where sorting takes XLA's
    CPU compiler thirty times as long. Floats that are not negative are in the order of their bits.
    """
    needed = share * weights.sum(-1, keepdims=True)
    bits = jax.lax.bitcast_convert_type(weights, jnp.int32)

    def halve(_: int, between: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = between
        middle = low + (high - low) // 2
        is_enough = jnp.where(bits >= middle, weights, 0).sum(-1, keepdims=True) >= needed
        return jnp.where(is_enough, middle, low), jnp.where(is_enough, high, middle)

    # The maximum is 1 (`choose`), so that no bits are above those of 1.
    ends = jnp.zeros_like(bits[:, :1]), jnp.full_like(bits[:, :1], _BITS_OF_ONE + 1)
    smallest, _ = jax.lax.fori_loop(0, 31, halve, ends)
    return jnp.where(bits >= smallest, weights, 0)


def _draw(weights: Array, at: Array) -> Array:
    """Choose an entry of each row of [batch, vocab] with probabilities in proportion to the weights: int32 [batch].

    One random number of a row, in [0, 1), is looked up in the running sum of its weights: first among the sums of
    parts, then within a part. Random numbers for all entries would be most of a small model's time on CPUs.
    """
    batch, width = weights.shape
    parts = jnp.pad(weights, ((0, 0), (0, -width % _PART))).reshape(batch, -1, _PART)
    sums = parts.sum(-1)
    part, rest = _find(sums, at * sums.sum(-1))
    entry, _ = _find(jnp.take_along_axis(parts, part[:, None, None], axis=1)[:, 0], rest)
    return part * _PART + entry


def _find(weights: Array, at: Array) -> tuple[Array, Array]:
    """Return each row's first entry up to which the weights sum to more than `at`, and what `at` has left there."""
    upto = jnp.cumsum(weights, axis=-1)
    at = jnp.minimum(at, jnp.nextafter(upto[:, -1], jnp.float32(0)))  # sums in another order may be a bit larger
    entry = (upto <= at[:, None]).sum(-1, dtype=jnp.int32)
    before = jnp.take_along_axis(upto, jnp.maximum(entry - 1, 0)[:, None], axis=1)[:, 0]
    return entry, at - jnp.where(entry > 0, before, 0)
