"""The batches of a run's steps: read ahead of them, or of completions that the model makes as it is at a step."""

from collections.abc import Callable, Collection, Iterator, Mapping

import jax

from shardwise.train.completions import Completions
from shardwise.train.loader import Loader
from shardwise.train.microbatches import Batch, Compared
from shardwise.train.start import Start


class Batches:
    """What a run's steps are taken on.

    Args:
        start: data, programs, and what makes completions, if anything does.
        left_out: numbers of batches that are never trained on.

    """

    def __init__(self, start: Start, left_out: Collection[int]) -> None:
        self._training, self._completions = start.program.training, start.completions
        self._first_step, self._left_out, self._figures = start.first_step, left_out, dict[str, float]()
        self.loader = Loader(
            start.data.train.rows,
            start.program.layout,
            sequences=self._training.batch.sequences,
            seq_len=start.program.config.seq_len,
            left_out=left_out,
            ramp_up=self._training.batch.ramp_up,
            compares=self._training.has_unmatched,
        )

    @property
    def completions(self) -> Completions | None:
        """What makes them, of a run that learns from rewards: then the weights of one step make the next one's."""
        return self._completions

    def of_all_steps(self, params: Callable[[], Mapping[str, jax.Array]]) -> Iterator[Batch | Compared]:
        """Yield the batches up to the last step; `params` returns the weights as they are."""
        first, stop = self._first_step, self._training.steps
        if self._completions is None:
            yield from self.loader.ahead(first, stop)
            return
        for group in range(first // self._training.updates, stop // self._training.updates):
            for made in self._completions.batches(self.loader.number(group), params()):
                self._figures = made.figures
                yield made.batch

    def number(self, step: int) -> int:
        """Return the number of the batch, or of the completions, that a step is taken on; steps count from 1."""
        return self.loader.number((step - 1) // self._training.updates)

    def steps_left_out(self) -> set[int]:
        """Return which batches would be left out if each were of one step."""
        updates = self._training.updates
        return {number * updates + part for number in self._left_out for part in range(updates)}

    def ends_at(self, step: int) -> bool:
        """Return whether nothing is left behind a step that a run would need to go on from there."""
        return step % self._training.updates == 0

    def record(self, record: dict[str, float], values: Mapping[str, float]) -> dict[str, float]:
        """Return the numbers of the newest step, with those of its completions."""
        return self._completions.record(record, values, self._figures) if self._completions else record
