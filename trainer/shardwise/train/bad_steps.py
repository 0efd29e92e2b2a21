"""Which steps must not be trained on, and whether the run then stops, skips them or goes back.

A loss is a spike if it lies `sigmas` standard deviations above the mean of the last `window` good ones, as in OLMo and
Levanter. All processes see the same numbers and reach the same verdict.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shardwise.job.spec import BadSteps

_DISPATCHED_AHEAD = 2  # a step is always dispatched before the loss of the step before it is known


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on a bad step."""

    action: str
    """stop, skip or rollBack."""
    reason: str
    """What is wrong with it."""


class Judge:
    """Judges steps by the losses before them.

    Args:
        settings: The job's.
        losses: (step, loss) of the last good steps, ascending.

    """

    def __init__(self, settings: BadSteps, losses: Iterable[tuple[int, float]] = ()) -> None:
        self._settings = settings
        self._losses = deque(losses, maxlen=settings.window + _DISPATCHED_AHEAD)

    @property
    def skips(self) -> bool:
        """Whether the step's program itself holds back the updates of bad steps, and so takes a limit."""
        return "skip" in (self._settings.non_finite, self._settings.loss_spike)

    @property
    def losses(self) -> tuple[tuple[int, float], ...]:
        """The losses from which another judge can continue."""
        return tuple(self._losses)

    def limit(self, step: int) -> np.float32:
        """Return the loss above which a step is a spike; infinity if too few losses are known.

        It uses the losses up to two steps before only: the program needs its limit when the step is dispatched.
        """
        known = [loss for number, loss in self._losses if number <= step - _DISPATCHED_AHEAD][-self._settings.window :]
        if 2 * len(known) < self._settings.window:
            return np.float32(math.inf)
        mean = math.fsum(known) / len(known)  # exact sums, the same on every machine
        deviation = math.sqrt(math.fsum((loss - mean) ** 2 for loss in known) / len(known))
        return np.float32(mean + self._settings.sigmas * deviation)

    def limit_of_updates(self, step: int) -> np.float32:
        """Return the loss above which the program holds the step's update back."""
        return self.limit(step) if self._settings.loss_spike == "skip" else np.float32(math.inf)

    def judge(self, step: int, loss: float, grad_norm: float) -> Verdict | None:
        """Return the verdict on a bad step; return None for a good one, and remember its loss."""
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            reason = f"the loss is {loss} and the gradient norm {grad_norm}; expected finite numbers"
            return Verdict(action=self._settings.non_finite, reason=reason)
        if self._settings.loss_spike is None:
            return None
        limit = self.limit(step)
        if loss > limit:
            reason = f"the loss is {loss:.4f}; expected at most {limit:.4f} after the steps before it"
            return Verdict(action=self._settings.loss_spike, reason=reason)
        self._losses.append((step, loss))
        return None
