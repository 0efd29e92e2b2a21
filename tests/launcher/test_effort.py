"""Whether a process works, by the processor time that it has used."""

import pytest

from shardwise.launcher.effort import Effort


@pytest.mark.parametrize(("share", "resting"), [(1.0, 0.5), (0.06, 0.5), (0.04, 20.5), (0.0, 20.5)])
def test_a_twentieth_of_a_core_is_work(share: float, resting: float) -> None:
    """A process that uses less than that rests, from the moment on at which it was last seen to work."""
    effort = Effort(now=100.0)
    for second in range(1, 21):
        effort.look(share * second, now=100.0 + second)

    assert effort.resting_seconds(now=120.5) == resting


def test_one_that_goes_on_works_again() -> None:
    """A process that was stopped for long and then goes on is at work, however long it has rested."""
    effort = Effort(now=0.0)
    effort.look(0.0, now=50.0)
    assert effort.resting_seconds(now=50.0) == 50.0

    effort.look(0.5, now=51.0)
    assert effort.resting_seconds(now=51.0) == 0.0


def test_looks_in_quick_succession_do_not_count() -> None:
    """A share is only told over a second: the kernel counts in hundredths."""
    effort = Effort(now=0.0)
    for tenth in range(1, 10):
        effort.look(1.0, now=tenth / 10)
    assert effort.resting_seconds(now=0.9) == 0.9
