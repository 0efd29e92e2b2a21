"""Batches on the devices, made one step ahead while the devices work.

A batch is a pure function of (data, seed, step), so there is no state to save. Each process reads only the rows of its
own devices.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from functools import cache

import jax
import numpy as np

from shardwise.job.batch_sizes import BatchSizes
from shardwise.job.spec.batch import RampUp
from shardwise.train.data import sequences
from shardwise.train.data.order import batch_number
from shardwise.train.data.unmatched import unmatched
from shardwise.train.layout import Layout
from shardwise.train.microbatches import Batch, Compared
from shardwise.train.zigzag import zigzag

Rows = Callable[[np.ndarray], sequences.Batch]
_FIELDS = tuple(field.name for field in fields(sequences.Batch))


class Loader:
    """Global batches of `sequences` rows, from a function that reads rows by sample number.

    `left_out` are numbers of batches, counted from 0, that are never trained on; the first ones have as many rows as
    `ramp_up` says. With `compares` a batch has prompts with answers to others beside its own.
    """

    def __init__(
        self,
        rows: Rows,
        layout: Layout,
        *,
        sequences: int,
        seq_len: int,
        left_out: Collection[int] = (),
        ramp_up: Sequence[RampUp] = (),
        compares: bool = False,
    ) -> None:
        self._rows, self._layout, self._compares = rows, layout, compares
        self._left_out = left_out
        self._sizes, self._seq_len = BatchSizes.of(sequences, ramp_up), seq_len
        self.waited_seconds = 0.0

    def of(self, rows: Rows, *, compares: bool = False) -> "Loader":
        """Return the loader of other rows, as many in each batch as in these after the ramp."""
        return Loader(rows, self._layout, sequences=self._sizes.last, seq_len=self._seq_len, compares=compares)

    @property
    def num_sequences(self) -> int:
        """The sequences of a batch after the ramp."""
        return self._sizes.last

    def number(self, step: int) -> int:
        """Return the number of a step's batch: the step, counted from 0, plus one for each batch left out before it."""
        return batch_number(step, self._left_out)

    def batch(self, step: int) -> Batch:
        """Return the batch of one step: the samples that follow those of all batches before."""
        return self._batch(step, self._rows)

    def _whole(self, step: int) -> Batch | Compared:
        own = self.batch(step)
        return Compared(own, self._batch(step, unmatched(self._rows))) if self._compares else own

    def _batch(self, step: int, of_samples: Rows) -> Batch:
        number = self.number(step)
        first, shape = self._sizes.before(number), (self._sizes.size(number), self._seq_len)

        # Devices of one tensor or context group hold the same rows, and every field needs them: read them once.
        @cache
        def read(start: int, stop: int) -> sequences.Batch:
            return of_samples(np.arange(first + start, first + stop, dtype=np.int64))

        def place(field: str) -> jax.Array:
            def slice_of(index: tuple[slice, ...] | None) -> np.ndarray:
                assert index is not None
                start, stop, _ = index[0].indices(shape[0])
                rows: np.ndarray = getattr(read(start, stop), field)
                return zigzag(rows, self._layout.context, axis=1)[:, index[1]]

            return jax.make_array_from_callback(shape, self._layout.batch, slice_of)

        return Batch(*(place(field) for field in _FIELDS))

    def ahead(self, start: int, stop: int) -> Iterator[Batch | Compared]:
        """Yield the batches of steps start to stop - 1; add up in `waited_seconds` how long the caller waited."""
        with ThreadPoolExecutor(1, thread_name_prefix="loader") as pool:
            coming: Future[Batch | Compared] = pool.submit(self._whole, start)
            for step in range(start, stop):
                asked = time.perf_counter()
                batch = coming.result()
                self.waited_seconds += time.perf_counter() - asked
                if step + 1 < stop:
                    coming = pool.submit(self._whole, step + 1)
                yield batch
