"""The loss on held-out documents."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax.stages import Compiled

from shardwise.train.loader import Loader
from shardwise.train.state import State


class HeldOut(NamedTuple):
    """Means over the tokens of an evaluation, and their number."""

    loss: float
    accuracy: float
    tokens: float


def evaluate(program: Compiled, params: State, loader: Loader, num_batches: int, beat: Callable[[], None]) -> HeldOut:
    """Evaluate the first held-out batches, and call `beat` after each."""
    sums = []
    for batch in loader.ahead(0, num_batches):
        sums.append(jax.device_get(program(params, batch)))
        beat()
    weight = sum(float(s.weight) for s in sums)
    loss = sum(float(s.cross_entropy) for s in sums) / weight
    return HeldOut(loss, sum(float(s.correct) for s in sums) / weight, weight)
