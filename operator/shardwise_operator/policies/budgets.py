"""What the replacement of a pod costs: the budgets of `spec.recovery.restarts`, and the wait before it is made."""

from shardwise_operator.observed import Observed
from shardwise_operator.words import Lost

MAX_BACKOFF_SECONDS = 300.0
_FIELDS = {
    Lost.EVICTION: "eviction",
    Lost.NODE_LOST: "node_lost",
    Lost.MAINTENANCE: "maintenance",
    Lost.ADMISSION: "admission",
    Lost.IMAGE: "image",
    Lost.OUT_OF_MEMORY: "out_of_memory",
    Lost.UNKNOWN: "unknown",
}


def budget(seen: Observed, cause: Lost) -> int:
    """How many pods a round may lose for `cause`."""
    assert seen.made_of is not None
    return int(getattr(seen.made_of.job.spec.recovery.restarts, _FIELDS[cause]))


def backoff_seconds(seen: Observed, count: int) -> float:
    """The wait before the pod that the `count`th charge of one cause replaces: none at first, then doubling."""
    assert seen.made_of is not None
    first = seen.made_of.job.spec.recovery.backoff.seconds
    return 0.0 if count <= 1 else min(MAX_BACKOFF_SECONDS, first * 2.0 ** min(count - 2, 64))
