"""Which steps must not be trained on, and whether the run then stops, skips them or goes back.

A loss is a spike if it lies `sigmas` standard deviations above the mean of the last `window` good ones, as in OLMo and
Levanter; losses from before a phase of the mixture are of other data, and measure none in it. All processes see the
same numbers and reach the same verdict.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwise.job.spec import BadSteps, Training
from shardwise.train.data.order import first_step

_DISPATCHED_AHEAD = 2  # a step is always dispatched before the loss of the step before it is known


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on a bad step."""

    action: str
    """stop, skip or rollBack."""
    reason: str
    """What is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Past:
    """What a judge knows of the steps before, and from which another one can continue."""

    losses: tuple[tuple[int, float], ...] = ()
    """(step, loss) of the last good steps, ascending."""
    skipped: int = 0
    """How many of the last steps were skipped, one after the other."""


NO_PAST = Past()


class Judge:
    """Judges steps by the losses before them.

    Args:
        settings: The job's.
        past: Of the steps before the first one that is judged.
        begins: Steps with which a phase of the mixture begins.

    """

    def __init__(self, settings: BadSteps, past: Past = NO_PAST, begins: Collection[int] = ()) -> None:
        self._settings, self._begins = settings, begins
        self._losses = deque(past.losses, maxlen=settings.window + _DISPATCHED_AHEAD)
        self._in_a_row, self._since_save = past.skipped, 0

    @classmethod
    def of(cls, training: Training, past: Past, left_out: Collection[int]) -> "Judge":
        """Return the judge of a run that never trains on the batches `left_out`, from which phases begin earlier."""
        begins = [first_step(phase.from_step, left_out) + 1 for phase in training.data.phases]
        return cls(training.bad_steps, past, begins)

    @property
    def skips(self) -> bool:
        """Whether the step's program itself holds back the updates of bad steps, and so takes a limit."""
        return "skip" in (self._settings.non_finite, self._settings.loss_spike)

    @property
    def past(self) -> Past:
        """What another judge can continue from."""
        return Past(losses=tuple(self._losses), skipped=self._in_a_row)

    def limit(self, step: int) -> np.float32:
        """Return the loss above which a step is a spike; infinity if too few losses are known.

        It uses the losses up to two steps before only: the program needs its limit when the step is dispatched. It
        uses those of the step's own phase only: where the data change for good, so may the loss.
        """
        first = max((begin for begin in self._begins if begin <= step), default=0)
        known = [loss for number, loss in self._losses if first <= number <= step - _DISPATCHED_AHEAD]
        known = known[-self._settings.window :]
        if 2 * len(known) < self._settings.window:
            return np.float32(math.inf)
        mean = math.fsum(known) / len(known)  # exact sums, the same on every machine
        deviation = math.sqrt(math.fsum((loss - mean) ** 2 for loss in known) / len(known))
        return np.float32(mean + self._settings.sigmas * deviation)

    def limit_of_updates(self, step: int) -> np.float32:
        """Return the loss above which the program holds the step's update back."""
        return self.limit(step) if self._settings.loss_spike == "skip" else np.float32(math.inf)

    def judge(self, step: int, loss: float, grad_norm: float) -> Verdict | None:
        """Return the verdict on a bad step; return None for a good one, and remember its loss.

        A step that is one too many to skip ends the run. Ask once for each step.
        """
        verdict = self._verdict(step, loss, grad_norm)
        if verdict is None:
            self._in_a_row = 0
            if self._settings.loss_spike is not None:
                self._losses.append((step, loss))
        elif verdict.action == "skip":
            return self._counted(verdict)
        return verdict

    def event(self, verdict: Verdict, step: int, batch: int, values: Mapping[str, float]) -> dict[str, Any]:
        """Return the event that tells of a bad step."""
        return {
            "event": {"skip": "skipped", "rollBack": "rolledBack", "stop": "nonfinite"}[verdict.action],
            "step": step,
            "batch": batch,
            "reason": f"step {step}: {verdict.reason}",
            "loss": values["loss"],
            "gradNorm": values["grad_norm"],
        }

    def saved(self) -> None:
        """Count anew the steps that are skipped between two saves."""
        self._since_save = 0

    def _verdict(self, step: int, loss: float, grad_norm: float) -> Verdict | None:
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            reason = f"the loss is {loss} and the gradient norm {grad_norm}; expected finite numbers"
            return Verdict(action=self._settings.non_finite, reason=reason)
        if self._settings.loss_spike is None:
            return None
        limit = self.limit(step)
        if loss > limit:
            reason = f"the loss is {loss:.4f}; expected at most {limit:.4f} after the steps before it"
            return Verdict(action=self._settings.loss_spike, reason=reason)
        return None

    def _counted(self, verdict: Verdict) -> Verdict:
        """Return the verdict on a step that would be skipped, by how many were before it."""
        self._since_save += 1
        self._in_a_row += 1
        if self._since_save > self._settings.max_skips:
            skipped = f"{self._since_save - 1} were skipped since the last save"
        elif self._in_a_row > self._settings.max_skips:
            skipped = f"the {self._in_a_row - 1} steps before it were skipped"
        else:
            return verdict
        return replace(verdict, action="stop", reason=f"{verdict.reason}, and {skipped}")
