"""Which sequence of which source each training sample is: a pure function, with no state and next to no memory.

A sample's global number is step * sequences a batch + row, so the order depends neither on the mesh nor on the number
of hosts, and a resumed run needs nothing but its step. It reads no tokens.

A mixture has stretches in which the shares of the sources stay the same; from each stretch's first sample it goes by
blocks of BLOCK_SAMPLES. How many samples of a block each source gets follows from quotas that are exact over the whole
stretch; their places in the block are shuffled by the seed. The n-th sample of a source, over all stretches, is
sequence `permute(n mod N)` of epoch `n div N`, N the number of its sequences: every sequence once in each epoch.

What follows a stretch changes no sample in it: its last block is cut, and the next stretch counts what was drawn. Only
where the counts of a mixture end is the last block shorter, so that they are met exactly.
"""

from collections.abc import Collection, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.train.data.mixture import Mixture

BLOCK_SAMPLES = 2048
_CACHED_BLOCKS = 16
_ROUNDS = 6
_BLOCK_KEY, _EPOCH_KEY, _LATER_BLOCK_KEY = 1, 2, 3
_WEYL = 0x9E3779B97F4A7C15
_BITS = (1 << 64) - 1

UInt64Array = NDArray[np.uint64]
Int64Array = NDArray[np.int64]


class _Shares(NamedTuple):
    """The share that each source takes of what those before it in `order` leave."""

    order: tuple[int, ...]
    of_rest: tuple[Fraction, ...]

    @classmethod
    def of(cls, shares: Sequence[Fraction], counts: Sequence[int | None]) -> "_Shares":
        """Put sources with a count first, which are to get exactly that: the last ones get what rounding leaves."""
        order = sorted(range(len(shares)), key=lambda source: counts[source] is None)
        left = [sum((shares[source] for source in order[place:]), Fraction(0)) for place in range(len(order))]
        of_rest = (shares[source] / rest if rest else rest for source, rest in zip(order, left, strict=True))
        return cls(tuple(order), tuple(of_rest))

    def quotas(self, num_samples: int) -> list[int]:
        """Return how many of the first `num_samples` samples each source gets.

        Each takes its share, rounded down, of what is left; so no quota ever falls as `num_samples` grows, and none is
        ever further than the number of sources from its exact weight.
        """
        quotas = [0] * len(self.order)
        for source, share in zip(self.order, self.of_rest, strict=True):
            quotas[source] = num_samples * share.numerator // share.denominator
            num_samples -= quotas[source]
        return quotas


class _Stretch(NamedTuple):
    """Samples from `first` on, `drawn` [source] of which came before, divided by `shares`.

    With a `stop` it ends there with quotas that are exact.
    """

    first: int
    stop: int | None
    drawn: list[int]
    shares: _Shares


class Order:
    """The order of a mixture of sources with `num_sequences` [source] (at least 1 each)."""

    def __init__(self, *, num_sequences: Sequence[int], mixture: Mixture, seed: int) -> None:
        assert len(num_sequences) == len(mixture.counts)
        assert min(num_sequences) >= 1
        self._num_sequences = np.array(num_sequences, np.int64)
        self._seed = seed
        self._block = lru_cache(maxsize=_CACHED_BLOCKS)(self._make_block)
        self._stretches: list[_Stretch] = []
        for first in mixture.bounds():
            drawn = self._drawn(first) if self._stretches else [0] * len(num_sequences)
            stop = mixture.num_samples if mixture.ends and first < mixture.num_samples else None
            shares = _Shares.of(mixture.shares(first, drawn), mixture.counts)
            self._stretches.append(_Stretch(first, stop, drawn, shares))
        self._firsts = np.array([stretch.first for stretch in self._stretches], np.int64)

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Map global sample numbers [batch] to source numbers [batch] and sequence numbers in the source [batch]."""
        samples = np.asarray(samples, np.int64)
        sources = np.empty(samples.shape, np.int64)
        draws = np.empty(samples.shape, np.int64)
        stretches = np.searchsorted(self._firsts, samples, side="right") - 1
        blocks, places = np.divmod(samples - self._firsts[stretches], BLOCK_SAMPLES)
        for stretch, block in np.unique(np.stack([stretches.ravel(), blocks.ravel()]), axis=1).T:
            here = (stretches == stretch) & (blocks == block)
            block_sources, block_draws = self._block(int(stretch), int(block))
            sources[here], draws[here] = block_sources[places[here]], block_draws[places[here]]
        return sources, self._sequences(sources, draws)

    def _drawn(self, stop: int) -> list[int]:
        """Return how many samples [source] come before sample `stop` of the last stretch or the bound behind it."""
        number = len(self._stretches) - 1
        stretch = self._stretches[number]
        block, places = divmod(stop - stretch.first, BLOCK_SAMPLES)
        whole = stretch.shares.quotas(block * BLOCK_SAMPLES)
        cut = self._block(number, block)[0][:places] if places else np.empty(0, np.int64)
        in_block = np.bincount(cut, minlength=len(whole)).tolist()
        return [sum(each) for each in zip(stretch.drawn, whole, in_block, strict=True)]

    def _sequences(self, sources: Int64Array, draws: Int64Array) -> Int64Array:
        sequences = np.empty(draws.shape, np.int64)
        for source in np.unique(sources):
            here = sources == source
            size = int(self._num_sequences[source])
            epochs, indices = np.divmod(draws[here], size)
            keys = _hash(self._seed, _EPOCH_KEY, int(source), epochs.astype(np.uint64))
            sequences[here] = permute(indices, size, keys)
        return sequences

    def _make_block(self, number: int, block: int) -> tuple[Int64Array, Int64Array]:
        """Return the source of each place in a stretch's block, and how many of its samples come before in the run."""
        stretch, start = self._stretches[number], block * BLOCK_SAMPLES
        size = BLOCK_SAMPLES if stretch.stop is None else min(BLOCK_SAMPLES, stretch.stop - stretch.first - start)
        # Quotas of the whole stretch, not of a block: so rounding never adds up, and a block needs none before it.
        before, after = stretch.shares.quotas(start), stretch.shares.quotas(start + size)
        sources = np.repeat(np.arange(len(before)), np.subtract(after, before))
        key = (_LATER_BLOCK_KEY, stretch.first + start) if stretch.first else (_BLOCK_KEY, block)
        # Sorting by hashes shuffles the same way everywhere; numpy's generators may change between versions.
        hashes = _hash(self._seed, *key, np.arange(size, dtype=np.uint64))
        sources = sources[np.argsort(hashes, kind="stable")]
        draws = np.empty(size, np.int64)
        for source, first in enumerate(before):
            here = sources == source
            draws[here] = stretch.drawn[source] + first + np.arange(np.count_nonzero(here))
        return sources, draws


def batch_number(step: int, left_out: Collection[int]) -> int:
    """Return the number of a step's batch: the step, counted from 0, plus one for each batch left out before it."""
    number = step
    for other in sorted(left_out):
        number += other <= number
    return number


def first_step(batch: int, left_out: Collection[int]) -> int:
    """Return the step, counted from 0, from which on batches have at least a number: the inverse of `batch_number`."""
    return batch - sum(other < batch for other in {*left_out})


def permute(indices: Int64Array, size: int, keys: UInt64Array) -> Int64Array:
    """Map each of 0..size-1 to another, one to one, by a permutation that its key chooses; keys [index].

    A Feistel network over the next even power of two; results outside are put in again until they fall inside
    (cycle walking, Black and Rogaway 2002: fewer than four rounds through it on average).
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    result = _feistel(indices.astype(np.uint64), half_bits, keys)
    outside = result >= size
    while outside.any():
        result[outside] = _feistel(result[outside], half_bits, keys[outside])
        outside = result >= size
    return result.astype(np.int64)


def _feistel(values: UInt64Array, half_bits: int, keys: UInt64Array) -> UInt64Array:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for number in range(_ROUNDS):
        left, right = right, left ^ (_hash(number, keys, right) & mask)
    return (left << shift) | right


def _hash(*values: int | UInt64Array) -> UInt64Array:
    """Return 64 well-mixed bits of numbers and arrays of one shape, in order; at least one is an array."""
    state: UInt64Array = np.zeros(1, np.uint64)
    for value in values:
        word = np.array([value & _BITS], np.uint64) if isinstance(value, int) else value
        state = _mix((state ^ word) + np.uint64(_WEYL))
    return state


def _mix(words: UInt64Array) -> UInt64Array:
    """Apply the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
