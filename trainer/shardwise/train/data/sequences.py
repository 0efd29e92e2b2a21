"""Batches of fixed-length sequences out of token streams, for training and for evaluation.

It knows no mesh: the caller asks for the samples that its devices need, in any order and on any number of hosts.

Where the sequences of a stream begin and end is for `cuts` to say.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise.job.spec.data import Data, Source
from shardwise.train.data.chat import REJECTED
from shardwise.train.data.cuts import Cut, Documents, Even, Packed, Whole
from shardwise.train.data.mixture import Mixture
from shardwise.train.data.order import Int64Array, Order
from shardwise.train.data.prompts import EachPrompt, Prompt

# Evaluation takes the first few held-out sequences; a fixed shuffle makes them a fair sample of all sources and files.
HELD_OUT_SEED = 0
_TOKEN = np.int32(REJECTED - 1)


class Stream(Documents, Protocol):
    """The tokens of a source, from the job's own cache or from a token store."""

    def prefetch(self, wanted: Iterable[tuple[int, int]]) -> None:
        """Get ranges of tokens that are soon read, all at once."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of a batch. `targets` is `tokens` one later; a target of weight 0 is not learned from.

    `segments` numbers the documents of a sequence from 0; all 0 if attention goes across documents. Of answers that
    are good or bad it numbers the good ones evenly; of a pair the rejected one is the chosen one and one more.
    """

    tokens: NDArray[np.int32]  # [batch, position]
    targets: NDArray[np.int32]  # [batch, position]
    weights: NDArray[np.float32]  # [batch, position]
    segments: NDArray[np.int32]  # [batch, position]


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Sequences of streams by (source, number). Each stream has a cut."""

    streams: tuple[Stream, ...]
    cuts: tuple[Cut, ...]
    seq_len: int
    split_documents: bool

    def count(self) -> list[int]:
        """Return the number of sequences [source]."""
        return [cut.count() for cut in self.cuts]

    def read(self, sources: Int64Array, sequences: Int64Array) -> Batch:
        """Return the batch of these sequences, in order; both arguments [batch]."""
        tokens = np.zeros((sources.size, self.seq_len + 1), np.int32)
        segments, counted = np.zeros_like(tokens), np.zeros(tokens.shape, np.bool_)
        for source in np.unique(sources):
            stream, cut, rows = self.streams[source], self.cuts[source], np.flatnonzero(sources == source)
            bounds = [each.tolist() for each in cut.bounds(sequences[rows])]
            stream.prefetch(zip(*bounds, strict=True))
            for row, start, stop in zip(rows.tolist(), *bounds, strict=True):
                found, size = stream.read(start, stop), stop - start
                counted[row, :size] = found < 0 if cut.marked else True
                tokens[row, :size] = found & _TOKEN if cut.marked else found
                if self.split_documents:
                    segments[row, :size] = _segments(stream, start, size)
                    if isinstance(cut, Whole):
                        segments[row, :size] = _sides(segments[row, :size], found)
                    segments[row, size:] = segments[row, size - 1] + 1  # no document is seen from the room that is left
        return Batch(
            tokens=tokens[:, :-1],
            targets=tokens[:, 1:],
            weights=(counted[:, 1:] & (segments[:, :-1] == segments[:, 1:])).astype(np.float32),
            segments=segments[:, :-1],
        )

    @property
    def longest(self) -> int:
        """The tokens of the longest sequence."""
        sizes = (np.subtract(*cut.bounds(np.arange(cut.count()))[::-1]) for cut in self.cuts)
        return max(int(each.max(initial=0)) for each in sizes)

    def prompts(self, sources: Int64Array, sequences: Int64Array) -> list[Prompt]:
        """Return prompts, in order, of sources that hold such; both arguments [batch]."""
        return [self._prompt(*each) for each in zip(sources.tolist(), sequences.tolist(), strict=True)]

    def _prompt(self, source: int, sequence: int) -> Prompt:
        cut = self.cuts[source]
        assert isinstance(cut, EachPrompt), "a rule wants it of all sources"
        return cut.read(self.streams[source], sequence)


def cut_up(
    sources: Sequence[Source], streams: Sequence[Stream], data: Data, seq_len: int, *, keeps_rest: bool = False
) -> Sequences:
    """Return the sequences of sources' streams: prompts, whole answers, conversations, or even ones of text.

    What is left at the end of a text is a shorter sequence, or is not used.
    """
    return Sequences(
        streams=tuple(streams),
        cuts=tuple(
            _cut(source, stream, seq_len, keeps_rest=keeps_rest)
            for source, stream in zip(sources, streams, strict=True)
        ),
        seq_len=seq_len,
        split_documents=data.attend_across == "document",
    )


def _cut(source: Source, stream: Stream, seq_len: int, *, keeps_rest: bool) -> Cut:
    if source.prompts:
        return EachPrompt(stream, seq_len)
    if source.is_judged:
        return Whole(stream, seq_len)
    return Packed(stream, seq_len) if source.chat_template else Even(stream.num_tokens, seq_len, keeps_rest=keeps_rest)


class TrainSet:
    """The training samples: endless, numbered from 0, in the order of the seed. `num_sequences` are different.

    Of each source the sequences `left_out` [source] are not read: the next one in the source takes the place of each.
    """

    def __init__(self, sequences: Sequences, order: Order, left_out: Sequence[Collection[int]] = ()) -> None:
        self.num_sequences = sum(sequences.count())
        self._sequences = sequences
        self._order = order
        self._left_out = {source: np.array(sorted(each)) for source, each in enumerate(left_out) if each}

    def rows(self, sample_numbers: Int64Array) -> Batch:
        """Return the samples with these global numbers [batch] (step * sequences a batch + row)."""
        return self._sequences.read(*self.locate(sample_numbers))

    def locate(self, sample_numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the source and the sequence of these samples [batch]."""
        sources, sequences = self._order.locate(sample_numbers)
        for source, left_out in self._left_out.items():
            count = self._sequences.count()[source]
            while (moved := (sources == source) & np.isin(sequences, left_out)).any():
                sequences[moved] = (sequences[moved] + 1) % count
        return sources, sequences

    @property
    def longest(self) -> int:
        """The tokens of the longest sequence."""
        return self._sequences.longest

    def prompts(self, sample_numbers: Int64Array) -> list[Prompt]:
        """Return the prompts with these global numbers [batch], of sources that hold such."""
        return self._sequences.prompts(*self.locate(sample_numbers))

    def read(self, source: int, sequence: int) -> tuple[NDArray[np.int32], int]:
        """Return the tokens of one sequence [token], without the room that is left, and how many targets count."""
        batch = self._sequences.read(np.array([source]), np.array([sequence]))
        starts, stops = self._sequences.cuts[source].bounds(np.array([sequence]))
        return batch.tokens[0, : int((stops - starts)[0])], int(batch.weights.sum())


class HeldOutSet:
    """The held-out sequences of all sources, in one fixed order that does not depend on the job's seed."""

    def __init__(self, sequences: Sequences) -> None:
        counts = sequences.count()
        self.num_sequences = sum(counts)
        self._sequences = sequences
        self._ends = np.cumsum(counts)
        self._order = Order(num_sequences=[self.num_sequences], mixture=Mixture.constant([1.0]), seed=HELD_OUT_SEED)

    def rows(self, sample_numbers: Int64Array) -> Batch:
        """Return the sequences with these numbers [batch]; a number past the last gives a row of weight 0."""
        sample_numbers = np.asarray(sample_numbers, np.int64)
        batch = self._sequences.read(*self._locate(sample_numbers))
        batch.weights[sample_numbers >= self.num_sequences] = 0
        return batch

    def prompts(self, sample_numbers: Int64Array) -> list[Prompt]:
        """Return the prompts with these numbers [batch], of sources that hold such."""
        return self._sequences.prompts(*self._locate(sample_numbers))

    @property
    def longest(self) -> int:
        """The tokens of the longest sequence."""
        return self._sequences.longest

    def _locate(self, sample_numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
        _, numbers = self._order.locate(sample_numbers)
        sources = np.searchsorted(self._ends, numbers, side="right")
        return sources, numbers - np.concatenate([[0], self._ends])[sources]


def _segments(stream: Stream, start: int, length: int) -> NDArray[np.int32]:
    """Return the number of its document for each token [token] from `start`, counted from 0."""
    begins = np.zeros(length, np.int32)
    begins[stream.ends_within(start + 1, start + length) - start] = 1
    return np.cumsum(begins, dtype=np.int32)


def _sides(documents: NDArray[np.int32], tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the segment [token] of tokens with marks: the token that ends a pair has none, and stays with its side."""
    return np.maximum.accumulate(2 * documents + ((tokens & np.int32(REJECTED)) != 0))
