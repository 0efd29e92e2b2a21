"""How many sequences each batch of a run has: a pure function of its number, since a ramp goes by batches."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from shardwise.job.rounding import num_parts
from shardwise.job.spec.batch import RampUp
from shardwise.job.spec.training import Training


class _Stretch(NamedTuple):
    """Batches from number `first` on, each of so many sequences; `before` sequences come before them."""

    first: int
    before: int
    sequences: int


@dataclass(frozen=True)
class BatchSizes:
    """The sizes of batches, which are counted from 0."""

    _stretches: tuple[_Stretch, ...]

    @classmethod
    def of(cls, sequences: int, ramp_up: Sequence[RampUp] = ()) -> Self:
        """Return the sizes of a job's batches, whose ramp ascends to `sequences`."""
        stretches, first, before = [], 0, 0
        for part in ramp_up:
            stretches.append(_Stretch(first, before, part.sequences))
            before += (part.until_step - first) * part.sequences
            first = part.until_step
        return cls((*stretches, _Stretch(first, before, sequences)))

    @property
    def last(self) -> int:
        """The sequences of a batch after the ramp, which are the most."""
        return self._stretches[-1].sequences

    def size(self, number: int) -> int:
        """Return the sequences of a batch."""
        return self._of(number).sequences

    def before(self, number: int) -> int:
        """Return the sequences of all batches before one: the number of its first sample."""
        stretch = self._of(number)
        return stretch.before + (number - stretch.first) * stretch.sequences

    def batches_with(self, sequences: int) -> int:
        """Return how many of the first batches it takes to have so many sequences, or more."""
        stretch = next(one for one in reversed(self._stretches) if one.before <= sequences)
        return stretch.first + num_parts(sequences - stretch.before, stretch.sequences)

    def sizes(self, first: int, stop: int) -> tuple[int, ...]:
        """Return the numbers of sequences that the batches `first` to `stop` - 1 have, in their order."""
        ends = [*(one.first for one in self._stretches[1:]), stop]
        parts = zip(self._stretches, ends, strict=True)
        return tuple(one.sequences for one, end in parts if max(first, one.first) < min(stop, end))

    def _of(self, number: int) -> _Stretch:
        return self._stretches[bisect_right(self._stretches, number, key=lambda one: one.first) - 1]


def steps_left(training: Training | None, step: int | None, of: int | None) -> float | None:
    """Return what is left after `step` of `of` steps, in steps as large as that one; None if not known.

    An own program has no `training`, and its steps are alike.
    """
    if step is None or of is None:
        return None
    if training is None or not training.batch.ramp_up:
        return max(0, of - step)
    sizes = BatchSizes.of(training.batch.sequences, training.batch.ramp_up)
    return (sizes.before(max(of, step)) - sizes.before(step)) / sizes.size(max(0, step - 1))
