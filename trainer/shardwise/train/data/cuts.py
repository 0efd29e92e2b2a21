"""Where the sequences of a stream begin and end: evenly, or at the ends of conversations or pairs of answers.

A sequence has at most seq_len + 1 tokens, the last one being only a target.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise.job.rounding import num_parts
from shardwise.train.data.order import Int64Array


class Documents(Protocol):
    """What a cut needs of a stream."""

    num_tokens: int

    def read(self, start: int, stop: int) -> NDArray[np.int32]:
        """Return the tokens [token] from position `start` up to `stop`."""

    def ends_within(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the ends of documents [document] from position `first` up to `stop`."""


class Cut(Protocol):
    """The sequences of a stream, by their numbers from 0."""

    marked: bool
    """Whether tokens carry a mark, their sign, if they are targets that count; else all count."""
    num_left_out: int
    """Documents that are in no sequence."""

    def count(self) -> int:
        """Return the number of sequences."""

    def bounds(self, numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return where these sequences begin and where they end [sequence]."""


class Even:
    """Sequence i is the tokens [i S, i S + S]. What is left at the end is not used, or is a shorter sequence."""

    marked, num_left_out = False, 0

    def __init__(self, num_tokens: int, seq_len: int, *, keeps_rest: bool = False) -> None:
        self._num_tokens, self._seq_len, self._keeps_rest = num_tokens, seq_len, keeps_rest

    def count(self) -> int:
        """Return the number of sequences."""
        num_targets = max(0, self._num_tokens - 1)
        return num_parts(num_targets, self._seq_len) if self._keeps_rest else num_targets // self._seq_len

    def bounds(self, numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return where these sequences begin and where they end [sequence]."""
        starts = numbers * self._seq_len
        return starts, np.minimum(starts + self._seq_len + 1, self._num_tokens)


class AtEnds:
    """Sequences of documents with marks, each of which begins and ends where it was looked for once."""

    marked = True

    def __init__(self, bounds: Sequence[tuple[int, int]], num_left_out: int = 0) -> None:
        self._bounds, self.num_left_out = np.array(bounds, np.int64).reshape(-1, 2), num_left_out

    def count(self) -> int:
        """Return the number of sequences."""
        return len(self._bounds)

    def bounds(self, numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return where these sequences begin and where they end [sequence]."""
        return self._bounds[numbers, 0], self._bounds[numbers, 1]


class Packed(AtEnds):
    """As many whole documents, in their order, as fit into each sequence.

    One that is longer than a sequence is cut into several, none of which lacks a target that counts; each of its tokens
    is a target once. `stream` holds marks.
    """

    def __init__(self, stream: Documents, seq_len: int) -> None:
        ends = stream.ends_within(0, stream.num_tokens + 1)
        room = seq_len + 1
        bounds = []
        start, is_cut = 0, False
        while start < stream.num_tokens:
            place = int(np.searchsorted(ends, start + room, side="right"))
            was_cut, is_cut = is_cut, place == 0 or ends[place - 1] <= start
            stop = start + room if is_cut else int(ends[place - 1])
            if not (was_cut or is_cut) or (stream.read(start + 1, stop) < 0).any():
                bounds.append((start, stop))
            start = stop - 1 if is_cut else stop
        super().__init__(bounds)


class Whole(AtEnds):
    """As many whole documents, in their order, as fit into each sequence; one that is longer is left out."""

    def __init__(self, stream: Documents, seq_len: int) -> None:
        ends = stream.ends_within(0, stream.num_tokens + 1)
        bounds = []
        start, num_left_out = 0, 0
        while start < stream.num_tokens:
            stop = int(ends[np.searchsorted(ends, start, side="right")])
            if stop > start + seq_len + 1:
                num_left_out += 1
            else:
                stop = int(ends[np.searchsorted(ends, start + seq_len + 1, side="right") - 1])
                bounds.append((start, stop))
            start = stop
        super().__init__(bounds, num_left_out)
