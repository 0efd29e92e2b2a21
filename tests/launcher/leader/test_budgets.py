"""What a restart costs, and how long it waits."""

import pytest

from shardwise.job.spec import Restarts
from shardwise.job.spec.recovery import MAX_BACKOFF_SECONDS
from shardwise.launcher.leader.budgets import STORAGE_BACKOFF_SECONDS, charge, left, wait_seconds
from shardwise.protocol.contract import Cause
from shardwise.protocol.leader_record import Used

LIMITS = Restarts(failure=2, nonfinite=0, hang=1, out_of_memory=1, storage=4, device=3, host_lost=5)


@pytest.mark.parametrize(
    ("cause", "restarts"),
    [
        (Cause.FAILURE, 2),
        (Cause.NONFINITE, 0),
        (Cause.HANG, 1),
        (Cause.OUT_OF_MEMORY, 1),
        (Cause.STORAGE, 4),
        (Cause.DEVICE, 3),
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
    """A restart after a new checkpoint does not wait; the next ones without one wait twice as long each time."""
    used, seen = Used(), []
    for step in committed:
        charged = charge(used, Cause.HOST_LOST, restarts=LIMITS, committed=step)
        assert charged is not None
        used = charged
        seen.append(wait_seconds(used, Cause.HOST_LOST, 2.0))
    assert seen == waits


def test_a_new_checkpoint_fills_every_budget() -> None:
    """Of the many faults of a month only those without a checkpoint between them count together."""
    used = charge(Used(), Cause.HANG, restarts=LIMITS, committed=10)
    assert used is not None
    assert charge(used, Cause.HANG, restarts=LIMITS, committed=10) is None
    used = charge(used, Cause.FAILURE, restarts=LIMITS, committed=20)
    assert used == Used(counts={Cause.FAILURE: 1}, in_a_row=1, committed=20)
    assert charge(used, Cause.HANG, restarts=LIMITS, committed=20) is not None


def test_what_is_left_is_said() -> None:
    """Of the cause's own budget, after the restart that was charged last."""
    used = charge(Used(), Cause.STORAGE, restarts=LIMITS, committed=10)
    assert used is not None

    assert left(used, Cause.STORAGE, LIMITS) == "3 of 4 restarts for storage are left before a newer checkpoint"


def test_storage_gets_time() -> None:
    """Every restart for storage waits; after several it waits as long as the others."""
    waits = [wait_seconds(Used(in_a_row=count), Cause.STORAGE, 4.0) for count in range(1, 6)]
    assert waits == [STORAGE_BACKOFF_SECONDS] * 3 + [16.0, 32.0]


def test_wait_is_bounded() -> None:
    """No restart waits for hours, however many there were."""
    assert wait_seconds(Used(in_a_row=2000), Cause.FAILURE, 1.0) == MAX_BACKOFF_SECONDS
