"""Which steps are not to be trained on, and what becomes of them.

Called by the loop. A loss is a spike where it lies `sigmas` standard deviations above the mean of the last `window`
good ones, as in OLMo and Levanter. All processes have the same numbers and come to the same verdict.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shardwise.job.spec import BadSteps

_DISPATCHED_AHEAD = 2  # a step is on its way before the one before it is known, whatever else is done in between


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """On a bad step."""

    then: str
    """stop, skip or rollBack."""
    words: str
    """What is wrong with it."""


class Judge:
    """Judges steps by the losses before them.

    Args:
        settings: The job's.
        losses: (step, loss) of the last good steps, ascending.

    """

    def __init__(self, settings: BadSteps, losses: Iterable[tuple[int, float]] = ()) -> None:
        """Nothing has been judged."""
        self._settings = settings
        self._losses = deque(losses, maxlen=settings.window + _DISPATCHED_AHEAD)

    @property
    def skips(self) -> bool:
        """Whether the step's program holds back the updates of bad steps; it is told the limit then."""
        return "skip" in (self._settings.non_finite, self._settings.loss_spike)

    @property
    def losses(self) -> tuple[tuple[int, float], ...]:
        """What another judge goes on from."""
        return tuple(self._losses)

    def limit(self, step: int) -> np.float32:
        """The loss above which a step is a spike; a function of the losses up to two steps before it."""
        known = [loss for number, loss in self._losses if number <= step - _DISPATCHED_AHEAD][-self._settings.window :]
        if self._settings.loss_spike is None or 2 * len(known) < self._settings.window:
            return np.float32(math.inf)
        mean = math.fsum(known) / len(known)  # exact sums, the same on every machine
        deviation = math.sqrt(math.fsum((loss - mean) ** 2 for loss in known) / len(known))
        return np.float32(mean + self._settings.sigmas * deviation)

    def limit_of_updates(self, step: int) -> np.float32:
        """The loss above which the program itself holds a step's update back."""
        return self.limit(step) if self._settings.loss_spike == "skip" else np.float32(math.inf)

    def judge(self, step: int, loss: float, grad_norm: float) -> Verdict | None:
        """What is wrong with a step, if anything; the loss of a good one is remembered."""
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            words = f"the loss is {loss} and the gradient norm {grad_norm}; expected finite numbers"
            return Verdict(then=self._settings.non_finite, words=words)
        if self._settings.loss_spike is None:
            return None
        limit = self.limit(step)
        if loss > limit:
            words = f"the loss is {loss:.4f}; expected at most {limit:.4f} after the steps before it"
            return Verdict(then=self._settings.loss_spike, words=words)
        self._losses.append((step, loss))
        return None
