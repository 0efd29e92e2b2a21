"""Numbers that the stream and the logits are multiplied by, or bent with, where a model has them.

Gemma Team, "Gemma 2" (2024) for the embedding's root and the range of logits; IBM, "Granite 3.0 Language Models" (2024)
for the other factors, after Yang et al., "Tensor Programs V" (2022).
"""

import math
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp

from shardwise.train.config import GptConfig

Array = jax.Array


def times(x: Array, factor: float) -> Array:
    """Multiply in float32, since bfloat16 would round the factor itself; by 1 not at all."""
    return x if factor == 1 else (x.astype(jnp.float32) * factor).astype(x.dtype)


def of_embedding(x: Array, config: GptConfig) -> Array:
    """Multiply what was looked up as the model asks."""
    if config.scale_embedding:
        x = x * jnp.asarray(math.sqrt(config.embed_size), x.dtype)  # rounded, as in the published models
    return times(x, config.embedding_factor)


class Bend(NamedTuple):
    """What becomes of float32 logits after the product with the head."""

    divisor: float = 1.0
    """They are divided by it first."""
    softcap: float | None = None
    """Then they are bent into this range by tanh; None: they are not."""
    temperature: float = 1.0
    """At last they are divided by it, where a loss is of what was drawn so."""

    @classmethod
    def of(cls, config: GptConfig, temperature: float = 1.0) -> Self:
        """Return the model's, at a temperature."""
        return cls(config.logit_divisor, config.logit_softcap, temperature)

    def apply(self, logits: Array) -> tuple[Array, Array | None]:
        """Return the bent logits, and what `slope` wants of them."""
        if self.divisor != 1:
            logits = logits / self.divisor
        bent = None
        if self.softcap is not None:
            bent = jnp.tanh(logits / self.softcap)
            logits = self.softcap * bent
        return logits if self.temperature == 1 else logits / self.temperature, bent

    def slope(self, slope: Array, bent: Array | None) -> Array:
        """Return the derivative by the logits as they were, of a derivative by the bent ones."""
        if self.temperature != 1:
            slope = slope / self.temperature
        if bent is not None:
            slope = slope * (1 - bent * bent)
        return slope if self.divisor == 1 else slope / self.divisor
