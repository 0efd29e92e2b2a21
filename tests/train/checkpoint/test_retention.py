"""Which checkpoints go: a table."""

import pytest

from shardwise.job.spec import Keep
from shardwise.train.checkpoint.retention import expired


@pytest.mark.parametrize(
    ("committed", "saved", "keep", "gone"),
    [
        ([10], 10, Keep(last=1), []),
        ([10, 20], 20, Keep(last=1), [10]),
        ([10, 20, 30], 30, Keep(last=3), []),
        ([10, 20, 30, 40], 40, Keep(last=2), [10, 20]),
        ([10, 20, 30, 40, 50], 50, Keep(last=1, every_steps=20), [10, 30]),
        ([0, 5, 10], 10, Keep(last=1, every_steps=10), [5]),
        ([40, 10, 30, 20], 40, Keep(last=2), [10, 20]),
        ([10, 20, 60], 20, Keep(last=1), [10]),
        ([10, 20, 60, 70], 20, Keep(last=2), [10]),
    ],
)
def test_expired(committed: list[int], saved: int, keep: Keep, gone: list[int]) -> None:
    """The newest and the permanent ones stay, and the one just saved stays whatever lies beside it."""
    assert expired(committed, saved, keep) == gone


def test_the_origin_stays() -> None:
    """What the job names as its beginning is not deleted, and takes no place among the newest."""
    assert expired([0, 10, 20, 30], 30, Keep(last=2), origin=0) == [10]
    assert expired([10, 20, 30], 30, Keep(last=2), origin=0) == [10]
