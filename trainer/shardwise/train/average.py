"""A mean of the weights over the steps taken, of which newer ones count more (`optimizer.average` in a job).

After step n it is the sum over steps i of decay^(n - i) w_i, over that of decay^(n - i): an exponential moving average
without the pull of the first weights, which one that begins as their copy has for a few times 1 / (1 - decay) steps. It
is kept as a running mean, of which each step replaces a share:

    share = (1 - decay) / (1 - decay^n),   mean += share (w_n - mean)

The share is 1 at the first step. A weight that stays keeps its bits in the mean, too. Sources: Polyak and Juditsky,
"Acceleration of Stochastic Approximation by Averaging" (1992); the division by 1 - decay^n is that of Kingma and Ba,
"Adam" (2014).
"""

import math
from collections.abc import Mapping
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp

from shardwise.job.spec import Average

Array = jax.Array


class Mean(NamedTuple):
    """The part of a state that has the mean, laid out as the weights are."""

    steps: Array
    """int32: the steps that it is of; those whose update was held back are none of them."""
    weights: Mapping[str, Array]
    """Float32, by the paths of the parameters that steps change."""

    @classmethod
    def of_none(cls, weights: Mapping[str, Array]) -> Self:
        """Return that of no step, which the first one replaces whole; until then it is these weights."""
        return cls(jnp.int32(0), {path: x.astype(jnp.float32) for path, x in weights.items()})

    def with_step(self, settings: Average, weights: Mapping[str, Array]) -> Self:
        """Return the mean with the weights after one more step, float32."""
        steps = self.steps + 1
        gone = -jnp.expm1(steps.astype(jnp.float32) * math.log(settings.decay))  # 1 - decay^n, to the last bits
        share = jnp.minimum((1 - settings.decay) / gone, 1.0)
        moved = {path: mean + share * (weights[path] - mean) for path, mean in self.weights.items()}
        return self._replace(steps=steps, weights=moved)
