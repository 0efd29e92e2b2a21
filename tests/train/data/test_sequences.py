"""shardwise.train.data.sequences: which sequences the samples of a run are."""

import numpy as np

from shardwise.train.data.cuts import Even
from shardwise.train.data.mixture import Mixture
from shardwise.train.data.order import Order
from shardwise.train.data.sequences import Sequences, TrainSet


def test_the_next_sequence_takes_the_place_of_one_that_is_left_out() -> None:
    """Behind the last one the first, and of its own source alone; all others stay where they are."""
    cuts = Even(5 * 4 + 1, 4), Even(5 * 4 + 1, 4)
    sequences = Sequences(streams=(), cuts=cuts, seq_len=4, split_documents=False)
    order = Order(num_sequences=sequences.count(), mixture=Mixture.constant([1.0, 1.0]), seed=1)
    samples = np.arange(100)
    sources, all_of_them = order.locate(samples)
    same_sources, located = TrainSet(sequences, order, [{1, 2, 4}, ()]).locate(samples)

    assert np.array_equal(same_sources, sources)
    assert np.array_equal(located[sources == 0], np.array([0, 3, 3, 3, 0])[all_of_them[sources == 0]])
    assert np.array_equal(located[sources == 1], all_of_them[sources == 1])
