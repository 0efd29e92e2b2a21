"""Mixtures that change with the step, and sources that are passed over so many times."""

import tracemalloc
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from shardwise.job.batch_sizes import BatchSizes
from shardwise.job.spec.batch import RampUp
from shardwise.job.spec.data import Data
from shardwise.protocol.errors import DataError
from shardwise.train.data.mixture import Mixture, Phase, mixture_of
from shardwise.train.data.order import BLOCK_SAMPLES, Order

BATCH = 24
SIZES = [700, 5000, 90]
PHASES = [(0, [3.0, 1.0, 0.0]), (331, [1.0, 1.0, 2.0]), (332, [0.0, 0.0, 1.0]), (500, [0.5, 0.25, 0.25])]


def phased(phases: list[tuple[int, list[float]]], counts: tuple[int | None, ...] = (None,) * 3) -> Mixture:
    """A mixture whose phases begin at these steps, of 900 steps."""
    made = tuple(Phase(step * BATCH, tuple(weights)) for step, weights in phases)
    return Mixture(phases=made, counts=counts, num_samples=900 * BATCH)


def located(
    mixture: Mixture, start: int, stop: int, *, sizes: list[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Sources and sequences of steps `start` to `stop` - 1."""
    return Order(num_sequences=sizes or SIZES, mixture=mixture, seed=4).locate(np.arange(start * BATCH, stop * BATCH))


def test_each_phase_has_its_shares() -> None:
    """Between two bounds each source has its weight's share, up to what the cut of one block moves."""
    bounds = [*(step for step, _ in PHASES), 900]
    for (start, stop), (_, weights) in zip(pairwise(bounds), PHASES, strict=True):
        sources, _ = located(phased(PHASES), start, stop)

        counts = np.bincount(sources, minlength=3)
        expected = np.array(weights) / sum(weights) * sources.size

        assert np.all(np.abs(counts - expected) <= 4 * np.sqrt(min(sources.size, BLOCK_SAMPLES)))
        assert np.all(counts[np.array(weights) == 0] == 0)


def test_passes_go_on_across_phases() -> None:
    """Whatever the phases, each source gives every one of its sequences once before any of them again."""
    sources, sequences = located(phased(PHASES), 0, 900)

    for source, size in enumerate(SIZES):
        mine = sequences[sources == source]
        whole = mine[: mine.size // size * size].reshape(-1, size)
        assert np.array_equal(np.sort(whole), np.tile(np.arange(size), (len(whole), 1)))
        rest = mine[whole.size :]
        assert np.unique(rest).size == rest.size
    assert np.count_nonzero(sources == 2) > 10 * SIZES[2]


def test_a_later_phase_changes_no_step_before_it() -> None:
    """A run that goes on with another mixture from some step on had the same samples until then."""
    short, long = (located(phased(PHASES[:count]), 0, 900) for count in (2, 4))

    for one, other in zip(short, long, strict=True):
        assert np.array_equal(one[: 332 * BATCH], other[: 332 * BATCH])
        assert not np.array_equal(one, other)


def test_any_step_is_known_by_its_number() -> None:
    """What a resumed run asks for, on any number of hosts, is what an uninterrupted one had, at bounds too."""
    sources, sequences = located(phased(PHASES, (None, 1234, None)), 0, 910)
    for step in (0, 85, 330, 331, 332, 333, 499, 500, 899, 900, 909):
        for first, last in ((0, 24), (0, 7), (7, 24)):
            order = Order(num_sequences=SIZES, mixture=phased(PHASES, (None, 1234, None)), seed=4)
            rows = np.arange(step * BATCH + first, step * BATCH + last)
            here, there = order.locate(rows)
            assert np.array_equal(here, sources[rows])
            assert np.array_equal(there, sequences[rows])


@pytest.mark.parametrize(
    "phases", [[(0, [3.0, 0.0, 1.0])], [(0, [3.0, 0.0, 1.0]), (77, [1.0, 0.0, 1.0]), (800, [0.0, 0.0, 1.0])]]
)
def test_epochs_are_exact_at_the_end(phases: list[tuple[int, list[float]]]) -> None:
    """A source of two and a half passes has each sequence twice, half of them thrice, at any number of phases."""
    sources, sequences = located(phased(phases, (None, 12_500, None)), 0, 900)

    seen = np.bincount(sequences[sources == 1], minlength=5000)

    assert [int(np.count_nonzero(seen == times)) for times in (2, 3)] == [2500, 2500]
    assert abs(np.count_nonzero(sources[: 450 * BATCH] == 1) - 6250) < 150  # evenly over the run


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("count", range(31, 41))
def test_epochs_are_exact_wherever_their_source_stands(place: int, count: int) -> None:
    """What rounding leaves goes to a source with a weight, which nobody has promised a number."""
    weights, counts = [1.0, 1.0, 1.0], list[int | None]([None, None, None])
    weights[place], counts[place] = 0.0, count
    mixture = Mixture(phases=(Phase(0, tuple(weights)),), counts=tuple(counts), num_samples=800)
    order = Order(num_sequences=[50, 50, 50], mixture=mixture, seed=4)

    taken = np.bincount(order.locate(np.arange(800))[0], minlength=3)

    assert taken[place] == count
    assert np.ptp(np.delete(taken, place)) <= 1


def test_two_counts_behind_many_weights_are_exact() -> None:
    """However many sources share the rest."""
    mixture = Mixture(phases=(Phase(0, (0.3,) * 8 + (0.0, 0.0)),), counts=(None,) * 8 + (77, 131), num_samples=5003)
    order = Order(num_sequences=[90] * 10, mixture=mixture, seed=4)

    assert np.bincount(order.locate(np.arange(5003))[0])[8:].tolist() == [77, 131]


def section(*sources: dict[str, object], **fields: object) -> Data:
    """A data section of these sources."""
    named = [{"name": f"s{number}", "paths": ["x"], **source} for number, source in enumerate(sources)]
    return Data.model_validate({"train": named, **fields})


def test_epochs_become_counts_and_weights_share_the_rest() -> None:
    """Of 1,000 steps of 8 sequences, two passes over 700 are 1,400; phases begin at their steps' samples."""
    data = section({"epochs": 2.0}, {"weight": 3.0}, {}, phases=[{"fromStep": 10, "weights": {"s2": 4.0}}])

    mixture = mixture_of(data, [700, 50, 60], sizes=BatchSizes.of(8), steps=1000)

    assert mixture == Mixture(
        phases=(Phase(0, (0.0, 3.0, 1.0)), Phase(80, (0.0, 0.0, 4.0))), counts=(1400, None, None), num_samples=8000
    )
    shares = mixture.shares(0, [0, 0, 0])
    assert shares == (Fraction(7, 40), Fraction(3, 4) * Fraction(33, 40), Fraction(1, 4) * Fraction(33, 40))


def test_a_mixture_goes_by_the_sequences_of_a_ramp() -> None:
    """Phases begin behind the batches before them, and passes are over all that the run has."""
    sizes = BatchSizes.of(16, [RampUp(until_step=20, sequences=4), RampUp(until_step=30, sequences=8)])
    data = section({"epochs": 2.0}, {}, phases=[{"fromStep": 25, "weights": {"s1": 4.0}}])

    mixture = mixture_of(data, [100, 50], sizes=sizes, steps=50)

    assert [phase.first for phase in mixture.phases] == [0, 20 * 4 + 5 * 8]
    assert (mixture.num_samples, mixture.counts) == (20 * 4 + 10 * 8 + 20 * 16, (200, None))


def test_passes_that_do_not_fit_a_ramp_say_how_many_steps_would() -> None:
    """Two passes over 100 are 200 sequences: 20 batches of 4, 10 of 8, and of 40 more 2.5 batches of 16."""
    sizes = BatchSizes.of(16, [RampUp(until_step=20, sequences=4), RampUp(until_step=30, sequences=8)])

    with pytest.raises(DataError, match=r"the run has 50 steps x 4 to 16 = 480; expected as many: set steps: 32"):
        mixture_of(section({"epochs": 2.0}), [100], sizes=sizes, steps=50)
    with pytest.raises(DataError, match=r"raise steps above 33, or lower the epochs"):
        mixture_of(section({"epochs": 2.0}, {}), [100, 9], sizes=sizes, steps=31)


def test_only_epochs_take_the_whole_run() -> None:
    """Without weights the run has as many steps as the passes take, and each source has its passes."""
    mixture = mixture_of(section({"epochs": 3.0}, {"epochs": 0.5}), [100, 61], sizes=BatchSizes.of(8), steps=41)

    sources, _ = Order(num_sequences=[100, 61], mixture=mixture, seed=0).locate(np.arange(41 * 8))

    assert np.abs(np.bincount(sources) - [300, 30]).max() <= 2


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (
            [{"epochs": 3.0}, {"epochs": 1.5}],
            (
                r"the epochs take s0 3 x 100 \+ s1 1.5 x 60 = 390 sequences, and the run has 40 steps x 8 = 320; "
                r"expected as many: set steps: 49,"
            ),
        ),
        (
            [{"epochs": 4.0}, {"weight": 1.0}],
            (
                r"s0 4 x 100 = 400 sequences, and the run has 40 steps x 8 = 320; expected fewer than that, .* raise "
                r"steps above 50"
            ),
        ),
    ],
)
def test_epochs_that_do_not_fit_are_refused_with_the_sum(sources: list[dict[str, object]], message: str) -> None:
    """The refusal says what the passes take, what the run has, and how many steps would fit."""
    with pytest.raises(DataError, match=message):
        mixture_of(section(*sources), [100, 60], sizes=BatchSizes.of(8), steps=40)


def test_curriculum_and_epochs_over_a_hundred_gigabytes_cost_nothing() -> None:
    """Of 64 sources with 6e6 sequences, 16 phases and epochs, any step of a million is found in little memory."""
    sizes = [6_103_515 // 64 + number for number in range(64)]
    phases = tuple(
        Phase(step * 512, tuple(float((source + step) % 7 + 1) for source in range(64)))
        for step in range(0, 960_000, 60_000)
    )
    counts = (*(2 * size for size in sizes[:8]), *(None,) * 56)
    tracemalloc.start()
    order = Order(
        num_sequences=sizes, mixture=Mixture(phases=phases, counts=counts, num_samples=512 * 1_000_000), seed=1
    )
    for step in (0, 59_999, 60_000, 777_777, 999_999):
        sources, sequences = order.locate(np.arange(step * 512, (step + 1) * 512))
        assert np.all((sequences >= 0) & (sequences < np.array(sizes)[sources]))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 8 << 20
