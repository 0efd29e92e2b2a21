"""How often each cause may end a run's processes, and how long to wait before they start again.

A pure decision on counts. The limits are in the job's `recovery` section.
"""

from shardwise.job.spec import Restarts
from shardwise.protocol.contract import Cause
from shardwise.protocol.leader_record import Used

MAX_BACKOFF_SECONDS = 300.0
STORAGE_BACKOFF_SECONDS = 10.0
"""The least before a restart for storage: the trainer has already tried several times before it ended."""


def limit(restarts: Restarts, cause: Cause) -> int:
    """Return how many restarts a cause has. Bad input has none, because the same input is as bad the next time."""
    limits = {
        Cause.FAILURE: restarts.failure,
        Cause.NONFINITE: restarts.nonfinite,
        Cause.HANG: restarts.hang,
        Cause.OUT_OF_MEMORY: restarts.out_of_memory,
        Cause.STORAGE: restarts.storage,
        Cause.DEVICE: restarts.device,
        Cause.HOST_LOST: restarts.host_lost,
    }
    return limits.get(cause, 0)


def charge(used: Used, cause: Cause, *, restarts: Restarts, committed: int) -> Used | None:
    """Return what is used up after one more restart for `cause`, or None if its budget does not allow it.

    `committed` is the newest committed step, -1 without one.
    """
    # A new checkpoint refills every budget. A month of training has many faults; only a run that fails again and again
    # without reaching a checkpoint has to end.
    if committed > used.committed:
        used = Used(committed=committed)
    count = used.counts.get(cause, 0)
    if count >= limit(restarts, cause):
        return None
    return Used(counts={**used.counts, cause: count + 1}, in_a_row=used.in_a_row + 1, committed=used.committed)


def wait_seconds(used: Used, cause: Cause, backoff_seconds: float) -> float:
    """Return how long to wait before the restart that was charged last, which was for `cause`.

    The first restart after a new checkpoint does not wait, except for storage, which needs time to come back. The next
    one waits for `backoff_seconds`, and each further one twice as long.
    """
    least = STORAGE_BACKOFF_SECONDS if cause == Cause.STORAGE else 0.0
    # The exponent is bounded, or the float would overflow after a thousand restarts.
    doubled = backoff_seconds * 2.0 ** min(used.in_a_row - 2, 64) if used.in_a_row > 1 else 0.0
    return max(least, min(MAX_BACKOFF_SECONDS, doubled))
