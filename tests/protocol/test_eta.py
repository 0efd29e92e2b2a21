"""shardwise.protocol.eta: the time that is left."""

from collections import deque

import pytest

from shardwise.protocol.eta import RECENT_STEPS, eta_seconds, of_each_step, seconds_in, words


@pytest.mark.parametrize(
    ("steps", "recent_seconds", "left"),
    [
        (90, deque([2.0, 2.0, 9.0], RECENT_STEPS), 180.0),
        (0, [2.0], 0.0),
        (2.5, [2.0], 5.0),
        (None, [2.0], None),
        (90, [], None),
    ],
)
def test_eta(steps: float | None, recent_seconds: list[float], left: float | None) -> None:
    """One slow step changes nothing; what is not known is not guessed."""
    assert eta_seconds(steps, recent_seconds) == left


@pytest.mark.parametrize(
    ("steps", "seconds", "each"),
    [
        ([4, 5, 6], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
        ([100, 200, 250], [100.0, 200.0, 25.0], [1.0, 2.0, 0.5]),
        ([7], [2.0], [2.0]),
        ([], [], []),
    ],
)
def test_a_program_may_report_each_hundredth_step(steps: list[int], seconds: list[float], each: list[float]) -> None:
    """The first one that is known is taken to be of as many steps as the next."""
    assert of_each_step(steps, seconds) == each


@pytest.mark.parametrize(
    ("seconds", "written", "read"), [(0.9, "0m0s", 0.0), (330.7, "5m30s", 330.0), (3930.0, "1h5m", 3900.0)]
)
def test_a_status_has_a_time_in_words(seconds: float, written: str, read: float) -> None:
    """What the operator writes is read back, to the second, and above an hour to the minute."""
    assert words(seconds) == written
    assert seconds_in(written) == read
    assert seconds_in(f"about {written}") is None


def test_a_time_of_hundreds_of_digits_is_none() -> None:
    """A number that no float holds is no time left, and no error."""
    assert seconds_in("9" * 400 + "m") is None
