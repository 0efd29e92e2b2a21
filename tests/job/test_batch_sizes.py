"""How many sequences each batch has, and what is left of a run in them."""

from itertools import accumulate

import pytest
from tests.job.test_identity import QUICKSTART

from shardwise.job.batch_sizes import BatchSizes, steps_left
from shardwise.job.load import load
from shardwise.job.resolve import resolve
from shardwise.job.spec.batch import RampUp
from shardwise.job.spec.training import Training

RAMP = [RampUp(until_step=3, sequences=2), RampUp(until_step=5, sequences=4)]
SIZES = [2, 2, 2, 4, 4, 8, 8, 8]


def test_each_batch_has_its_size_and_follows_those_before() -> None:
    """As counted one by one."""
    sizes = BatchSizes.of(8, RAMP)

    assert [sizes.size(number) for number in range(8)] == SIZES
    assert [sizes.before(number) for number in range(9)] == [0, *accumulate(SIZES)]
    assert sizes.last == 8
    assert [BatchSizes.of(8).before(number) for number in range(3)] == [0, 8, 16]


def test_as_many_batches_as_have_so_many_sequences() -> None:
    """The least number of the first ones, wherever in the ramp that ends."""
    sizes = BatchSizes.of(8, RAMP)
    sums = [0, *accumulate(SIZES)]

    for sequences in range(sums[-1] + 1):
        assert sizes.batches_with(sequences) == next(n for n, total in enumerate(sums) if total >= sequences)


@pytest.mark.parametrize("first", range(8))
@pytest.mark.parametrize("stop", range(1, 9))
def test_the_sizes_of_a_part_of_a_run(first: int, stop: int) -> None:
    """Each once: a run that begins behind the ramp needs no program of it."""
    assert BatchSizes.of(8, RAMP).sizes(first, stop) == tuple(dict.fromkeys(SIZES[first:stop]))


def _training(*overrides: str) -> Training:
    return resolve(load(QUICKSTART, overrides)).spec.training


def test_what_is_left_counts_in_steps_as_large_as_the_last() -> None:
    """A run that has done small steps alone has longer ones before it; without a ramp steps are alike."""
    training = _training("training.batch={sequences: 16, rampUp: [{untilStep: 10, sequences: 4}]}", "training.steps=20")

    assert steps_left(training, 5, 20) == 5 + 10 * 4
    assert steps_left(training, 10, 20) == 10 * 4
    assert steps_left(training, 11, 20) == 9
    assert steps_left(training, 20, 20) == steps_left(training, 21, 20) == 0
    assert steps_left(_training(), 5, 20) == steps_left(None, 5, 20) == 15
    assert steps_left(None, None, 20) is steps_left(training, 5, None) is None
