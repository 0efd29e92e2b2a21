"""What a restart costs, and how long it waits."""

import pytest

from shardwise.job.contract import Cause
from shardwise.job.spec import Restarts
from shardwise.launcher.budgets import MAX_BACKOFF_SECONDS, Used, charge, wait_seconds

LIMITS = Restarts(failure=2, nonfinite=0, hang=1, out_of_memory=1, host_lost=5)


@pytest.mark.parametrize(
    ("cause", "restarts"),
    [
        (Cause.FAILURE, 2),
        (Cause.NONFINITE, 0),
        (Cause.HANG, 1),
        (Cause.OUT_OF_MEMORY, 1),
        (Cause.HOST_LOST, 5),
        (Cause.BAD_INPUT, 0),
    ],
)
def test_budget(cause: Cause, restarts: int) -> None:
    """Each cause has its own number of restarts, and no other cause takes from it."""
    other = Cause.HANG if cause != Cause.HANG else Cause.FAILURE
    used: Used | None = charge(Used(), other, restarts=LIMITS, committed=-1)
    for _ in range(restarts):
        assert used is not None
        used = charge(used, cause, restarts=LIMITS, committed=-1)
    assert used is not None
    assert used.counts.get(cause, 0) == restarts
    assert charge(used, cause, restarts=LIMITS, committed=-1) is None


@pytest.mark.parametrize(
    ("committed", "waits"),
    [
        ([-1, -1, -1, -1], [0, 2, 4, 8]),
        ([5, 5, 5], [0, 2, 4]),
        ([-1, -1, 10, 10], [0, 2, 0, 2]),
        ([5, 10, 15], [0, 0, 0]),
    ],
)
def test_wait(committed: list[int], waits: list[float]) -> None:
    """A restart after a new checkpoint goes at once; the next ones without one wait twice as long each time."""
    used, seen = Used(), []
    for step in committed:
        charged = charge(used, Cause.HOST_LOST, restarts=LIMITS, committed=step)
        assert charged is not None
        used = charged
        seen.append(wait_seconds(used, 2.0))
    assert seen == waits


def test_wait_is_bounded() -> None:
    """However often, nobody waits for hours."""
    assert wait_seconds(Used(in_a_row=2000), 1.0) == MAX_BACKOFF_SECONDS
