"""How a token is chosen from a model's logits, on the device."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.protocol.errors import UsageError

Array = jax.Array
_COLDEST, _HOTTEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_BITS_OF_ONE = 0x3F800000
_PART = 128
ALL = 2**31 - 1
"""In the place of top-k: no token is left out."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The settings of one sequence: first the temperature, then top-k, then top-p."""

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


class Settings(NamedTuple):
    """The settings of each row, as the device takes them."""

    temperature: Any
    """float32 [rows]."""
    top_k: Any
    """int32 [rows]; as many as there are tokens, or more: all."""
    top_p: Any
    """float32 [rows]; 1: all."""

    @classmethod
    def of(cls, rows: Sequence[Sampling]) -> Self:
        """Return those of these rows."""
        return cls(
            # A device takes what is smaller for 0, and what is larger for infinity.
            np.array([row.temperature and min(max(row.temperature, _COLDEST), _HOTTEST) for row in rows], np.float32),
            np.array([ALL if row.top_k is None else min(row.top_k, ALL) for row in rows], np.int32),
            np.array([1 if row.top_p is None else row.top_p for row in rows], np.float32),
        )


def choose(logits: Array, random: Array, settings: Settings) -> Array:
    """Choose a token for each row: int32 [rows].

    Args:
        logits: float32 [rows, vocab], finite.
        random: float32 [rows], uniform in [0, 1); a row's token depends on its own alone.
        settings: of each row.

    """
    top, is_cold = logits.max(-1, keepdims=True), settings.temperature == 0
    # Less the maximum first: then no temperature is too small for float32.
    scaled = (logits - top) / jnp.maximum(settings.temperature, _COLDEST)[:, None]
    weights = jnp.where(is_cold[:, None], logits == top, jnp.exp(scaled))
    weights = _if_any(settings.top_k < logits.shape[1], _of_count, weights, settings.top_k)
    weights = _if_any(settings.top_p < 1, _of_share, weights, settings.top_p)
    return _draw(weights, jnp.where(is_cold, 0, random))  # the first of those that are equal


def _if_any(asked: Array, keep: Callable[[Array, Array], Array], weights: Array, setting: Array) -> Array:
    """Keep fewer of the weights in the rows that ask for it; where none does, the passes over them are spared."""
    kept: Array = jax.lax.cond(
        asked.any(), lambda: jnp.where(asked[:, None], keep(weights, setting), weights), lambda: weights
    )
    return kept


def _of_count(weights: Array, count: Array) -> Array:
    """Keep so many of the largest of each row of [rows, vocab]; of those that are equal the first."""
    smallest = _smallest(weights, lambda kept: kept.sum(-1, dtype=jnp.int32) >= count)
    larger, equal = weights > smallest, weights == smallest
    room = (count - larger.sum(-1, dtype=jnp.int32))[:, None]
    return jnp.where(larger | (equal & (equal.cumsum(-1, dtype=jnp.int32) <= room)), weights, 0)


def _of_share(weights: Array, share: Array) -> Array:
    """Keep the fewest of the largest of each row of [rows, vocab] that are this share of it, and what equals them."""
    needed = share * weights.sum(-1)
    smallest = _smallest(weights, lambda kept: jnp.where(kept, weights, 0).sum(-1) >= needed)
    return jnp.where(weights >= smallest, weights, 0)


def _smallest(weights: Array, are_enough: Callable[[Array], Array]) -> Array:
    """Return the largest number of each row such that the weights from it on are enough: float32 [rows, 1].

    It is found by halving: each half is one pass over the row, where sorting takes XLA's CPU compiler thirty times as
    long. Floats that are not negative are in the order of their bits.
    """
    bits = jax.lax.bitcast_convert_type(weights, jnp.int32)

    def halve(_: int, between: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = between
        middle = low + (high - low) // 2
        is_enough = are_enough(bits >= middle)[:, None]
        return jnp.where(is_enough, middle, low), jnp.where(is_enough, high, middle)

    # The maximum is 1 (`choose`), so that no bits are above those of 1.
    ends = jnp.zeros_like(bits[:, :1]), jnp.full_like(bits[:, :1], _BITS_OF_ONE + 1)
    smallest, _ = jax.lax.fori_loop(0, 31, halve, ends)
    return jax.lax.bitcast_convert_type(smallest, jnp.float32)


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
