"""The time of steps that are done again is known without a figure for every step of the run."""

import pytest

from shardwise.launcher.leader import step_times
from shardwise.launcher.leader.step_times import StepTimes


def taken(steps: range, seconds: float = 2.0, every: int | None = 10) -> StepTimes:
    """Return the times of steps of which each took so long, with a checkpoint every so many."""
    times = StepTimes()
    for step in steps:
        times.took(step, seconds)
        if every and step % every == 0:
            times.saved(step)
    return times


@pytest.mark.parametrize("step", [0, 10, 1230, 1239, 1240, 2000])
def test_a_restart_loses_the_steps_after_its_checkpoint(step: int) -> None:
    """Exactly, from whichever checkpoint; one that has lost them does not lose them again."""
    times = taken(range(1, 1240))

    assert times.lost_after(step) == 2.0 * max(0, 1239 - step)
    assert times.lost_after(step) == 0.0


def test_steps_that_differ_are_summed_between_checkpoints() -> None:
    """A rollBack to an earlier checkpoint knows what the steps since have taken."""
    times = StepTimes()
    for step in range(1, 31):
        times.took(step, float(step))
        if step % 10 == 0:
            times.saved(step)

    assert times.lost_after(20) == sum(range(21, 31))
    assert times.lost_after(15) == 0.5 * sum(range(11, 21))
    assert times.lost_after(5) == 0.5 * sum(range(11, 21)) + 0.5 * sum(range(1, 11))
    assert times.lost_after(0) == 0.5 * sum(range(1, 11))


def test_a_save_that_is_known_late() -> None:
    """Steps go on while it is made; those after its own are not in it, and known each by itself."""
    times = StepTimes()
    for step in range(1, 13):
        times.took(step, float(step))
    times.saved(10)

    assert times.lost_after(11) == 12.0
    assert times.lost_after(10) == 11.0


@pytest.mark.parametrize("every", [10, None], ids=["checkpoints", "none"])
def test_a_long_run_keeps_few_figures(every: int | None) -> None:
    """With and without checkpoints, and in all nothing is forgotten."""
    times = taken(range(1, 50_001), every=every)

    assert len(times._sums) <= step_times._MOST_SUMS
    assert len(times._steps) <= step_times._MOST_STEPS
    assert times.lost_after(0) == 100_000.0


def test_a_successor_goes_on_from_the_sum() -> None:
    """It has one figure for what was saved before it, and one for the steps since."""
    before = taken(range(1, 105)).in_short
    times = StepTimes(before)

    assert before == ((0, 100, 200.0), (100, 104, 8.0))
    assert times.lost_after(100) == 8.0
    times.took(101, 3.0)
    assert times.lost_after(50) == 103.0
    assert StepTimes().in_short == ()
