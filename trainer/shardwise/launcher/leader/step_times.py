"""The time of the steps that a later attempt may have to repeat, in few figures however long the run is.

An attempt goes on from a checkpoint, so the steps between two of them are lost together or not at all: of those only
the sum is kept. Only a restart from between two sums has to estimate, by the share of their steps.
"""

from collections.abc import Sequence

from shardwise.protocol.leader_record import StepsTime

_MOST_SUMS = 256
_MOST_STEPS = 4096  # without a checkpoint


class StepTimes:
    """What each step took, by step since the newest checkpoint, and before it in sums."""

    def __init__(self, before: Sequence[StepsTime] = ()) -> None:
        """Begin with what an earlier leader has counted."""
        self._sums = [*before]
        self._steps: dict[int, float] = {}

    @property
    def in_short(self) -> tuple[StepsTime, ...]:
        """Return one sum up to the newest checkpoint, and one of the steps since."""
        since = [StepsTime(min(self._steps) - 1, max(self._steps), sum(self._steps.values()))] if self._steps else []
        return tuple(_one(sums) for sums in (self._sums, since) if sums)

    def took(self, step: int, seconds: float) -> None:
        """Note a step that was completed."""
        self._steps[step] = seconds
        if len(self._steps) > _MOST_STEPS:
            self.saved(sorted(self._steps)[_MOST_STEPS // 2])

    def saved(self, step: int) -> None:
        """Keep only the sum of the steps up to this one."""
        done = sorted(each for each in self._steps if each <= step)
        if not done:
            return
        self._sums.append(StepsTime(done[0] - 1, done[-1], sum(self._steps.pop(each) for each in done)))
        if len(self._sums) > _MOST_SUMS:
            self._sums = [_one(self._sums[:2]), *self._sums[2:]]

    def lost_after(self, step: int) -> float:
        """Forget the steps after this one, which will be done again; return their seconds."""
        lost = sum(self._steps.pop(each) for each in [each for each in self._steps if each > step])
        while self._sums and self._sums[-1].last > step:
            after, last, seconds = self._sums.pop()
            kept = seconds * max(0, step - after) / (last - after)
            lost += seconds - kept
            if step > after:
                self._sums.append(StepsTime(after, step, kept))
        return lost


def _one(sums: Sequence[StepsTime]) -> StepsTime:
    return StepsTime(sums[0].after, sums[-1].last, sum(each.seconds for each in sums))
