"""The order of samples: permutations and mixtures."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.train.data.mixture import Mixture
from shardwise.train.data.order import BLOCK_SAMPLES, Order, batch_number, first_step, permute


@settings(deadline=None, max_examples=50)
@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_permute_is_one_to_one(size: int, key: int) -> None:
    """Every number below the size comes out exactly once, whatever size and key."""
    result = permute(np.arange(size), size, np.full(size, key, np.uint64))

    assert np.array_equal(np.sort(result), np.arange(size))


def test_permute_reaches_far_and_depends_on_the_key() -> None:
    """Neighbours land anywhere in a range too large to hold, and another key gives another order."""
    size = 10**12 + 7
    indices = np.arange(20_000)

    first, second = (permute(indices, size, np.full(indices.size, key, np.uint64)) for key in (1, 2))

    assert np.unique(first).size == indices.size
    assert abs(first.mean() / size - 0.5) < 0.01
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.03
    assert np.count_nonzero(first == second) == 0


@pytest.mark.parametrize("num_sequences", [1, 2, 3, 257, 5000])
def test_one_source_gives_every_sequence_once_an_epoch(num_sequences: int) -> None:
    """Each window of one epoch holds every sequence once, and the next epoch has another order."""
    order = Order(num_sequences=[num_sequences], mixture=Mixture.constant([3.0]), seed=5)

    sources, sequences = order.locate(np.arange(3 * num_sequences))
    epochs = sequences.reshape(3, num_sequences)

    assert not sources.any()
    assert np.array_equal(np.sort(epochs), np.tile(np.arange(num_sequences), (3, 1)))
    if num_sequences > 100:
        assert np.mean(epochs[0] == epochs[1]) < 0.05
        assert np.mean(epochs[0] == np.arange(num_sequences)) < 0.05


def test_a_mixture_gives_every_sequence_of_a_source_once_an_epoch() -> None:
    """The samples of one source among others go through its epochs whole, one after the other."""
    sizes = [70, 1000, 3]
    order = Order(num_sequences=sizes, mixture=Mixture.constant([0.3, 0.6, 0.1]), seed=1)

    sources, sequences = order.locate(np.arange(10_000))

    for source, size in enumerate(sizes):
        mine = sequences[sources == source]
        epochs = mine[: mine.size // size * size].reshape(-1, size)
        assert np.array_equal(np.sort(epochs), np.tile(np.arange(size), (len(epochs), 1)))


@pytest.mark.parametrize("weights", [[1.0], [1.0, 3.0], [0.7, 0.2, 0.1], [1e-6, 1.0, 1e-3, 5.0], [1 / 3] * 7])
def test_weights_are_exact_in_the_long_run(weights: list[float]) -> None:
    """At the end of every block each source's count is within the number of sources of its exact weight."""
    order = Order(num_sequences=[11] * len(weights), mixture=Mixture.constant(weights), seed=0)
    shares = np.array(weights) / sum(weights)
    counts = np.zeros(len(weights))

    for block in range(40):
        sources, _ = order.locate(np.arange(block * BLOCK_SAMPLES, (block + 1) * BLOCK_SAMPLES))
        counts += np.bincount(sources, minlength=len(weights))
        assert np.all(np.abs(counts - shares * counts.sum()) <= len(weights))


def test_sources_are_mixed_within_a_block() -> None:
    """Sources do not come in runs: any stretch of a block has about its share of each."""
    sources, _ = Order(num_sequences=[50, 50], mixture=Mixture.constant([1.0, 1.0]), seed=3).locate(
        np.arange(BLOCK_SAMPLES)
    )

    stretches = sources.reshape(16, -1).mean(axis=1)

    assert np.all(np.abs(stretches - 0.5) < 0.25)


def test_the_order_does_not_depend_on_how_it_is_asked() -> None:
    """Any slice, any order and any repetition of sample numbers gives what the whole range gives."""
    make = partial(Order, num_sequences=[31, 77], mixture=Mixture.constant([2.0, 1.0]), seed=9)
    numbers = np.arange(5 * BLOCK_SAMPLES)
    sources, sequences = make().locate(numbers)
    shuffled = np.random.default_rng(0).permutation(numbers)

    for asked in (shuffled, numbers[::-7], numbers[[4000, 4000, 1]]):
        some_sources, some_sequences = make().locate(asked)
        assert np.array_equal(some_sources, sources[asked])
        assert np.array_equal(some_sequences, sequences[asked])


def test_far_samples_need_no_history() -> None:
    """A sample beyond any real run is located, and counts stay exact there."""
    order = Order(num_sequences=[10**9, 5], mixture=Mixture.constant([0.9, 0.1]), seed=2)
    start = 10**15 // BLOCK_SAMPLES * BLOCK_SAMPLES

    sources, sequences = order.locate(np.arange(start, start + BLOCK_SAMPLES))

    assert abs(np.count_nonzero(sources) - 0.1 * BLOCK_SAMPLES) <= 2
    assert np.all(sequences >= 0)
    assert np.all(sequences < np.array([10**9, 5])[sources])


def test_the_order_is_the_same_on_every_machine_and_release() -> None:
    """The first samples of a seed, and some far ones, are pinned: resuming a run relies on them."""
    sources, sequences = Order(num_sequences=[100, 10], mixture=Mixture.constant([3.0, 1.0]), seed=8).locate(
        np.arange(10)
    )

    assert (sources.tolist(), sequences.tolist()) == (
        [0, 1, 0, 1, 0, 1, 0, 0, 1, 0],
        [0, 3, 17, 5, 43, 1, 37, 50, 8, 63],
    )
    far, tiny = 10**6, Order(num_sequences=[257, 2], mixture=Mixture.constant([1.0, 1.0]), seed=8)
    sources, sequences = tiny.locate(np.arange(far, far + 10))
    assert (sources.tolist(), sequences.tolist()) == (
        [0, 1, 1, 0, 1, 1, 0, 0, 0, 1],
        [228, 0, 1, 56, 0, 0, 169, 229, 186, 1],
    )


def test_a_batch_that_is_left_out_moves_those_after_it() -> None:
    """No other is left out or comes twice, in whichever order they were found bad."""
    assert [batch_number(step, ()) for step in range(4)] == [0, 1, 2, 3]
    assert [batch_number(step, (5, 1, 2)) for step in range(5)] == [0, 3, 4, 6, 7]
    for left_out in ((), (5, 1, 2), (0,)):
        for batch in range(9):
            expected = next(step for step in range(10) if batch_number(step, left_out) >= batch)
            assert first_step(batch, left_out) == expected


def test_seeds_give_other_orders() -> None:
    """Another seed changes both the mixing and the permutations."""
    orders = [
        Order(num_sequences=[500, 500], mixture=Mixture.constant([1.0, 1.0]), seed=seed).locate(np.arange(400))
        for seed in (0, 1)
    ]

    assert np.mean(orders[0][0] == orders[1][0]) < 0.7
    assert np.mean(orders[0][1] == orders[1][1]) < 0.05
