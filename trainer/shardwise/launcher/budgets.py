"""How often each cause may end a run's processes, and how long to wait before they start again.

Called by the leader after each bad end. A pure decision on counts; the limits are the job's `recovery` section.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardwise.job.contract import Cause
from shardwise.job.spec import Restarts

MAX_BACKOFF_SECONDS = 300.0
STORAGE_BACKOFF_SECONDS = 10.0
"""At least, before a restart for storage: the trainer has tried several times before it ended for that."""


@dataclass(frozen=True, kw_only=True)
class Used:
    """What one command has used up since the last new checkpoint.

    `counts` are restarts by cause, `in_a_row` all of them; `committed` is the newest committed step at the last one.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    in_a_row: int = 0
    committed: int = -1


def limit(restarts: Restarts, cause: Cause) -> int:
    """How many restarts a cause has. Bad input has none: the same input is as bad again."""
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
    """What is used up after one more restart for `cause`; None where the budget does not hold it.

    `committed` is the newest committed step, -1 without one. A run that has come to a new one is not charged for what
    was before: in a month there are many faults, and what recurs before any checkpoint is what must end.
    """
    if committed > used.committed:
        used = Used(committed=committed)
    count = used.counts.get(cause, 0)
    if count >= limit(restarts, cause):
        return None
    return replace(used, counts={**used.counts, cause: count + 1}, in_a_row=used.in_a_row + 1)


def wait_seconds(used: Used, cause: Cause, backoff_seconds: float) -> float:
    """How long to wait before the restart that was charged last, which was for `cause`.

    The first one after a new checkpoint goes at once, but for storage, which needs time to come back.
    """
    least = STORAGE_BACKOFF_SECONDS if cause == Cause.STORAGE else 0.0
    doubled = backoff_seconds * 2.0 ** min(used.in_a_row - 2, 64) if used.in_a_row > 1 else 0.0
    return max(least, min(MAX_BACKOFF_SECONDS, doubled))
