"""Prompts with answers to others: by these KTO estimates how far a model has moved from what it was.

Each prompt of a sequence gets an answer of the next sequence in the order of the samples, one after the other and round
again. So they depend on the data and the seed alone, and there are some where a sequence has a single answer.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from shardwise.train.data.order import Int64Array
from shardwise.train.data.sequences import Batch

Rows = Callable[[Int64Array], Batch]


def unmatched(rows: Rows) -> Rows:
    """Return the rows of prompts with other answers, cut where a sequence ends; weights are of the answers."""

    def read(sample_numbers: Int64Array) -> Batch:
        return _exchanged(rows(sample_numbers), rows(sample_numbers + 1))

    return read


def _exchanged(own: Batch, others: Batch) -> Batch:
    shape = own.tokens.shape[0], own.tokens.shape[1] + 1
    tokens, counted = np.zeros(shape, np.int32), np.zeros(shape, np.bool_)
    segments = np.zeros(shape, np.int32)
    for row in range(shape[0]):
        answers = [answer for _, *answer in _answered(others, row)]
        start, segment = 0, 0
        for number, (prompt, *_) in enumerate(_answered(own, row) if answers else ()):
            answer, counts = answers[number % len(answers)]
            stop = min(start + prompt.size + answer.size, shape[1])
            room = stop - start
            tokens[row, start:stop] = np.concatenate([prompt, answer])[:room]
            counted[row, start:stop] = np.concatenate([np.zeros(prompt.shape, np.bool_), counts])[:room]
            segments[row, start:stop] = segment
            start, segment = stop, segment + 1
        segments[row, start:] = segment
    return Batch(
        tokens=tokens[:, :-1],
        targets=tokens[:, 1:],
        weights=(counted[:, 1:] & (segments[:, :-1] == segments[:, 1:])).astype(np.float32),
        segments=segments[:, :-1],
    )


def _answered(batch: Batch, row: int) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]]:
    """Yield the tokens of each prompt of a row, those of its answer, and which of these count."""
    tokens = np.append(batch.tokens[row], batch.targets[row, -1])
    counted, segments = batch.weights[row] > 0, batch.segments[row]
    for segment in np.unique(segments[counted]):
        begins = int(np.flatnonzero(segments == segment)[0])
        found = np.flatnonzero(counted & (segments == segment)) + 1  # of the targets
        first, stop = int(found[0]), int(found[-1]) + 1
        yield tokens[begins:first], tokens[first:stop], counted[first - 1 : stop - 1]
