"""How often each cause may end a run's processes, and how long to wait before they start again.

A pure decision on counts. The limits are in the job's `recovery` section.
"""

from shardwise.job.spec import Restarts
from shardwise.job.spec.recovery import backoff_seconds, charged, left_of
from shardwise.protocol.contract import Cause
from shardwise.protocol.leader_record import Used

STORAGE_BACKOFF_SECONDS = 10.0
"""The least before a restart for storage: the trainer has already tried several times before it ended."""


def charge(used: Used, cause: Cause, *, restarts: Restarts, committed: int) -> Used | None:
    """Return what is used up after one more restart for `cause`, or None if its budget does not allow it.

    `committed` is the newest committed step, -1 without one.
    """
    newer = committed > used.committed
    counts = charged(used.counts, cause, restarts.of(cause), newer=newer)
    if counts is None:
        return None
    return Used(counts=counts, in_a_row=1 if newer else used.in_a_row + 1, committed=max(committed, used.committed))


def left(used: Used, cause: Cause, restarts: Restarts) -> str:
    """Return for people how many restarts for `cause` are left."""
    return left_of(used.counts, cause, restarts.of(cause))


def wait_seconds(used: Used, cause: Cause, first_seconds: float) -> float:
    """Return how long to wait before the restart that was charged last, which was for `cause`.

    Each waits as `backoff_seconds` says; one for storage, which needs time to come back, at least for ten seconds.
    """
    least = STORAGE_BACKOFF_SECONDS if cause == Cause.STORAGE else 0.0
    return max(least, backoff_seconds(first_seconds, used.in_a_row))
