"""Whether a process works, judged by the processor time that it has used."""

import pytest

from shardwise.launcher.system.cpu_time import CpuActivity


@pytest.mark.parametrize(("share", "resting"), [(1.0, 0.5), (0.06, 0.5), (0.04, 20.5), (0.0, 20.5)])
def test_a_twentieth_of_a_core_is_work(share: float, resting: float) -> None:
    """A process that uses less than that rests, counted from the moment at which it was last seen to work."""
    activity = CpuActivity(now=100.0)
    for second in range(1, 21):
        activity.observe(share * second, now=100.0 + second)

    assert activity.resting_seconds(now=120.5) == resting


def test_a_resumed_process_works_again() -> None:
    """A process that was stopped for long and then continues is at work, however long it has rested."""
    activity = CpuActivity(now=0.0)
    activity.observe(0.0, now=50.0)
    assert activity.resting_seconds(now=50.0) == 50.0

    activity.observe(0.5, now=51.0)
    assert activity.resting_seconds(now=51.0) == 0.0


def test_a_process_of_several_that_ends() -> None:
    """Its time may be missing from then on: that it ended is no rest, and what the others use counts at once."""
    activity = CpuActivity(now=0.0)
    activity.observe(500.0, now=1.0)
    activity.observe(0.0, now=20.0)
    assert activity.resting_seconds(now=20.0) == 0.0

    activity.observe(0.0, now=39.0)
    assert activity.resting_seconds(now=39.0) == 19.0
    activity.observe(0.5, now=40.0)
    assert activity.resting_seconds(now=40.0) == 0.0


def test_observations_in_quick_succession_do_not_count() -> None:
    """A share is only taken over a second, because the kernel counts in hundredths."""
    activity = CpuActivity(now=0.0)
    for tenth in range(1, 10):
        activity.observe(1.0, now=tenth / 10)
    assert activity.resting_seconds(now=0.9) == 0.9
