"""A model's weights for generation, and its compiled programs over a batch of sequences.

`shardwise.train.generate` decides what runs when; the programs are in `shardwise.train.decoding`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from shardwise.job.rounding import padded
from shardwise.train.decoding import lower_empty, lower_tokens, lower_weights, lower_window
from shardwise.train.decoding_arrays import (
    Batch,
    Joining,
    Rows,
    Wishes,
    cached_by,
    caches_of,
    num_slots,
    params_of,
    weights_of,
)
from shardwise.train.host_memory import is_on_host
from shardwise.train.layout import Layout
from shardwise.train.mesh import DATA
from shardwise.train.scoring import Scores, lower_scores
from shardwise.train.state import Program

Array = jax.Array
SHORTEST = 16
"""Positions that a beginning is filled up to; a multiple of `BLOCK`."""
_MEMORY_SHARE = 0.9


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A model's weights for generation, and its programs for so many rows, compiled when they are first used."""

    program: Program
    layout: Layout
    num_rows: int
    weights: tuple[Array, ...]
    """The arrays of the model: a call of a program would take the model itself apart, layer by layer."""
    window: int | None = None
    """Positions that all beginnings are filled up to; None: as few as the longest of them needs."""
    _compiled: dict[str, jax.stages.Compiled] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, params: Mapping[str, Array], num_sequences: int) -> Self:
        """Cast and lay out the parameters, which are laid out as the program stores them; they may be dropped then."""
        assert program.layout.context == 1, "positions are in their own order"
        parts = num_parts(program)
        num_rows = padded(num_sequences, parts)  # every part has as many rows
        layout = layout_of(program, num_rows)
        weights = tuple(lower_weights(program, layout).compile()(dict(params)))
        return cls(program=program, layout=layout, num_rows=num_rows, weights=weights)

    def empty(self) -> Batch:
        """Return a batch in which no row has begun."""
        batch: Batch = self._empty()()
        return batch

    def join(self, batch: Batch, windows: Mapping[int, Sequence[int]], slot: int | None) -> tuple[Batch, int]:
        """Return the batch with these tokens, one window at most, in these rows, and its newest slot.

        Other rows stay as they are; all are computed. The given batch is donated.

        Args:
            batch: has these rows; what was in them is gone.
            windows: by row.
            slot: the batch's newest; None if no row has begun.

        """
        length = self.window or window_for(self.program, max(len(window) for window in windows.values()))
        slot = length - 1 if slot is None else slot
        tokens = np.zeros((self.num_rows, length), np.int32)
        start, joins = np.zeros(self.num_rows, np.int32), np.zeros(self.num_rows, np.bool_)
        for row, window in windows.items():
            start[row] = len(window) - length
            tokens[row, length - len(window) :] = window
            joins[row] = True
        joining = Joining(tokens, start, joins, np.array(slot, np.int32))
        return self._window(length)(self.weights, batch, joining), slot

    def go_on(self, batch: Batch, rows: Rows, wishes: Wishes) -> tuple[Batch, NDArray[np.int32], NDArray[np.bool_]]:
        """Make tokens of the live rows until `BLOCK` are made or no row is live. The given batch is donated.

        A row lives until it has made the stop token or all tokens, its window is full, or its logits are no numbers.

        Returns:
            The batch; the tokens, [rows, BLOCK], with `NOTHING` after a row's last; which rows have no numbers, [rows].

        """
        batch, made, broken = self._tokens()(self.weights, batch, rows, wishes)
        return batch, np.asarray(made).T, np.asarray(broken)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[Scores]:
        """Return how likely each token of these sequences is but the first, as arrays of the host.

        Args:
            sequences: one for each row at most; each has one token at least, and at most one more than the model sees.

        """
        length = window_for(self.program, max(len(sequence) - 1 for sequence in sequences))
        tokens = np.zeros((2, self.num_rows, length), np.int32)
        start = np.zeros(self.num_rows, np.int32)
        for row, sequence in enumerate(sequences):
            start[row] = len(sequence) - 1 - length
            tokens[:, row, -start[row] :] = sequence[:-1], sequence[1:]
        found = jax.tree.map(np.asarray, self._scores(length)(self.weights, *tokens, start))
        return [Scores(*(each[row, -start[row] :] for each in found)) for row in range(len(sequences))]

    def compile_all(self, tell: Callable[[str], None], *, scores: bool = False) -> None:
        """Compile the programs for every length, so that none is compiled later; tell of each before.

        Args:
            tell: is told what is compiled next.
            scores: those of `score` too.

        """
        tell("tokens")
        self._empty()
        self._tokens()
        longest, length = num_slots(self.program), 0
        while length < longest:
            length = window_for(self.program, length + 1)
            tell(f"prompts of up to {length:,} tokens")
            self._window(length)
            if scores:
                tell(f"likelihoods of up to {length:,} tokens")
                self._scores(length)

    def _empty(self) -> jax.stages.Compiled:
        return self._of("empty", partial(lower_empty, self.program, self.layout, self.num_rows))

    def _tokens(self) -> jax.stages.Compiled:
        return self._of("tokens", partial(lower_tokens, self.program, self.layout, self.num_rows))

    def _window(self, length: int) -> jax.stages.Compiled:
        lower = partial(lower_window, self.program, self.layout, self.num_rows, length)
        return self._of(f"window-{length}", lower)

    def _scores(self, length: int) -> jax.stages.Compiled:
        lower = partial(lower_scores, self.program, self.layout, self.num_rows, length)
        return self._of(f"scores-{length}", lower)

    def _of(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> jax.stages.Compiled:
        if name not in self._compiled:
            self._compiled[name] = lower().compile()
        return self._compiled[name]


def window_for(program: Program, longest: int) -> int:
    """Return to how many positions beginnings are filled up: a power of two, so that few programs serve all lengths."""
    return min(max(SHORTEST, 1 << (longest - 1).bit_length()), num_slots(program))


def num_parts(program: Program) -> int:
    """Return over how many parts a batch is split: those of `data` in each replica."""
    return math.prod(program.layout.mesh.shape[axis] for axis in ("replica", *DATA))


def layout_of(program: Program, num_rows: int) -> Layout:
    """Return the layout for generation, on the devices of the program."""
    return layout_within(bytes_limit(program), program, num_rows, params_of(program).values())


def bytes_limit(program: Program) -> int | None:
    """Return the bytes that a device says it has; None of simulated ones, which do not say it."""
    known: dict[str, int] = program.layout.mesh.local_devices[0].memory_stats() or {}
    return known.get("bytes_limit")


def layout_within(limit: int | None, program: Program, num_rows: int, beside: Iterable[Any]) -> Layout:
    """Return the layout for generation: weights whole over `data` where they fit, or else as they are stored.

    `limit` are the bytes of a device, or None where nothing says how many; `beside` are abstract arrays that stay on
    the devices.

    A token takes little work, so weights that are gathered for each would be most of the time. A model that is too
    large for a device is gathered all the same, block by block: slow, but text comes of it on the devices that there
    are. Nothing is rounded to 8 bits in either.
    """
    if has_room(limit, program, num_rows, beside):
        return program.layout.whole_over_data()
    return replace(program.layout, form=None)


def has_room(limit: int | None, program: Program, num_rows: int, beside: Iterable[Any]) -> bool:
    """Return whether a device can hold weights that are whole over `data` and the caches of so many rows."""
    if limit is None:
        return True
    held = sum(bytes_of(program, program.layout.whole_over_data(), num_rows))
    return held + _bytes_on_one((x for x in beside if not is_on_host(x.sharding)), None) <= _MEMORY_SHARE * limit


def bytes_of(program: Program, layout: Layout, num_rows: int) -> tuple[int, int]:
    """Return the bytes on one device of the weights for generation, and of the caches of so many rows."""
    weights, caches = weights_of(program), jax.tree.leaves(caches_of(program, num_rows))
    of_weights = _bytes_on_one(jax.tree.leaves(weights), jax.tree.leaves(layout.placed(weights)))
    return of_weights, _bytes_on_one(caches, [cached_by(program, layout)] * len(caches))


def _bytes_on_one(arrays: Any, shardings: Sequence[NamedSharding] | None) -> int:
    """Return the bytes of abstract arrays on one device, by these shardings or their own."""
    found = list(arrays)
    places = [x.sharding for x in found] if shardings is None else shardings
    return sum(math.prod(place.shard_shape(x.shape)) * x.dtype.itemsize for x, place in zip(found, places, strict=True))
