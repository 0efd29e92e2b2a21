"""What share of the samples each source has, from which sample on: exact fractions, with no state.

A source has a weight, which may change at the start of a phase, or a count: so many samples in the whole run. It reads
no data and knows no order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from shardwise.job.batch_sizes import BatchSizes
from shardwise.job.spec.data import Data
from shardwise.protocol.errors import DataError

_ZERO, _ONE = Fraction(0), Fraction(1)


class Phase(NamedTuple):
    """From sample `first` on the sources have these weights [source]; 0 where a source has a count."""

    first: int
    weights: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Phases in order, the first at sample 0, and counts [source]: None for a source that has weights.

    `num_samples` are those of the whole run, in which the counted sources have exactly their counts.
    """

    phases: tuple[Phase, ...]
    counts: tuple[int | None, ...]
    num_samples: int

    @classmethod
    def constant(cls, weights: Sequence[float]) -> "Mixture":
        """Return the mixture of these weights [source] for ever."""
        return cls(phases=(Phase(0, tuple(weights)),), counts=(None,) * len(weights), num_samples=0)

    @property
    def ends(self) -> bool:
        """Return whether the run's last sample is a bound: by then the counted sources have their counts."""
        return any(count is not None for count in self.counts)

    def bounds(self) -> list[int]:
        """Return the samples from which the shares are others than before, ascending, with 0 first."""
        return sorted({*(phase.first for phase in self.phases), *([self.num_samples] if self.ends else [])})

    def shares(self, first: int, drawn: Sequence[int]) -> tuple[Fraction, ...]:
        """Return the share [source] of the samples from bound `first` on; `drawn` [source] came before it.

        A counted source gets what is left of its count over what is left of the run; the others divide the rest.
        """
        counted = [
            _ZERO if count is None else self._counted(count, first, before)
            for count, before in zip(self.counts, drawn, strict=True)
        ]
        exact = [Fraction(weight) for weight in max(p for p in self.phases if p.first <= first).weights]
        total, of_counts = sum(exact, _ZERO), sum(counted, _ZERO)
        if total == 0 or of_counts > 1:
            return tuple(share / of_counts for share in counted)
        return tuple(share + (_ONE - of_counts) * weight / total for share, weight in zip(counted, exact, strict=True))

    def _counted(self, count: int, first: int, before: int) -> Fraction:
        if first >= self.num_samples:  # left-out batches make a run longer
            return Fraction(count, self.num_samples)
        return Fraction(max(0, count - before), self.num_samples - first)


def mixture_of(data: Data, num_sequences: Sequence[int], *, sizes: BatchSizes, steps: int) -> Mixture:
    """Return the mixture of a run of so many batches of these sizes; `num_sequences` [source] are different.

    Raises:
        DataError: the epochs do not fit the run.

    """
    counts = tuple(
        None if source.epochs is None else max(1, round(Fraction(source.epochs) * count))
        for source, count in zip(data.train, num_sequences, strict=True)
    )
    at_first = {source.name: 1.0 if source.weight is None else source.weight for source in data.train}
    weights = [at_first, *(phase.weights for phase in data.phases)]
    firsts = [0, *(sizes.before(phase.from_step) for phase in data.phases)]
    phases = tuple(
        Phase(first, tuple(0.0 if source.epochs else named.get(source.name, 0.0) for source in data.train))
        for first, named in zip(firsts, weights, strict=True)
    )
    mixture = Mixture(phases=phases, counts=counts, num_samples=sizes.before(steps))
    if mixture.ends:
        _refuse_unfit(data, num_sequences, mixture, sizes)
    return mixture


def _refuse_unfit(data: Data, num_sequences: Sequence[int], mixture: Mixture, sizes: BatchSizes) -> None:
    """Raise DataError if the passes need more samples than the run has, or leave some that no source has."""
    counted = [
        (f"{source.name} {source.epochs:g} x {size:,}", count)
        for source, size, count in zip(data.train, num_sequences, mixture.counts, strict=True)
        if count is not None
    ]
    needed, given = sum(count for _, count in counted), mixture.num_samples
    terms = " + ".join(term for term, _ in counted)
    enough = sizes.batches_with(needed)
    fitting = min((max(1, enough - 1), enough), key=lambda steps: abs(sizes.before(steps) - needed))
    steps = sizes.batches_with(given)
    each = f"{sizes.last:,}" if sizes.size(0) == sizes.last else f"{sizes.size(0):,} to {sizes.last:,}"
    words = (
        f"data.train: the epochs take {terms} = {needed:,} sequences, and the run has {steps:,} steps x {each} = "
        f"{given:,}; expected "
    )
    only_counted = len(counted) == len(data.train)
    if only_counted and abs(needed - given) >= sizes.last:
        raise DataError(f"{words}as many: set steps: {fitting:,}, other epochs, or give one source a weight instead.")
    if not only_counted and needed >= given:
        raise DataError(
            f"{words}fewer than that, so that the sources with weights have some: raise steps above "
            f"{enough:,}, or lower the epochs."
        )
