"""The loss on text that is not trained on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
from jax.stages import Compiled

from shardwise.train.data.evaluation_sets import Evaluated
from shardwise.train.loader import Loader, Rows
from shardwise.train.state import State


class Means(NamedTuple):
    """Means over the targets of a set that count, and their number."""

    loss: float
    accuracy: float
    tokens: float


@dataclass(frozen=True)
class Evaluator:
    """Evaluates parameters on sets, with the one program of `shardwise.train.step.lower_evaluation`."""

    program: Compiled
    params: State
    loader: Callable[[Rows], Loader]
    beat: Callable[[], None]
    """Is called after each batch."""

    def means(self, one: Evaluated) -> Means:
        """Return the means over a set, as many batches of it as are to be evaluated."""
        loader = self.loader(one.sequences.rows)
        sums = []
        for batch in loader.ahead(0, one.num_batches(loader.num_sequences)):
            sums.append(jax.device_get(self.program(self.params, batch)))
            self.beat()
        weight = sum(float(s.weight) for s in sums)
        loss = sum(float(s.cross_entropy) for s in sums) / weight
        return Means(loss, sum(float(s.correct) for s in sums) / weight, weight)
