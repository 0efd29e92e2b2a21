"""How often each cause may end a run's processes, and how long to wait before they start again.

Called by the leader after each bad end. A pure decision on counts; the limits are the job's `recovery` section.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardwise.job.contract import Cause
from shardwise.job.spec import Restarts

MAX_BACKOFF_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Used:
    """What one command has used up.

    `counts` are restarts by cause. `in_a_row` counts those since the last new checkpoint, and `committed` is the newest
    committed step at the last of them.
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
        Cause.HOST_LOST: restarts.host_lost,
    }
    return limits.get(cause, 0)


def charge(used: Used, cause: Cause, *, restarts: Restarts, committed: int) -> Used | None:
    """What is used up after one more restart for `cause`; None where the budget does not hold it.

    `committed` is the newest committed step, -1 without one.
    """
    count = used.counts.get(cause, 0)
    if count >= limit(restarts, cause):
        return None
    in_a_row = 1 if committed > used.committed else used.in_a_row + 1
    return replace(used, counts={**used.counts, cause: count + 1}, in_a_row=in_a_row, committed=committed)


def wait_seconds(used: Used, backoff_seconds: float) -> float:
    """How long to wait before the restart that was charged last: the first one after a new checkpoint goes at once."""
    if used.in_a_row <= 1:
        return 0.0
    return min(MAX_BACKOFF_SECONDS, backoff_seconds * 2.0 ** min(used.in_a_row - 2, 64))
