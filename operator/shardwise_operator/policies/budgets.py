"""What a loss costs: the budgets of `spec.recovery.restarts`, and the wait before what was lost is made again.

Both start anew with each newer checkpoint: a run that gets on may lose as many pods as it likes.
"""

from dataclasses import replace

from shardwise_operator.observed import Observed
from shardwise_operator.state import State
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
    Lost.HOST_LOST: "host_lost",
}


def budget(seen: Observed, cause: Lost) -> int:
    """How many losses a round may have for `cause` without a newer checkpoint between."""
    assert seen.made_of is not None
    return int(getattr(seen.made_of.job.spec.recovery.restarts, _FIELDS[cause]))


def charge(seen: Observed, state: State, cause: Lost, now: float) -> State | None:
    """The state with one more loss, and the wait that it asks for; None where the budget does not hold it."""
    saved = seen.checkpoint_step
    charged = {} if saved is not None and saved > state.charged_step else state.charged
    if charged.get(cause, 0) >= budget(seen, cause):
        return None
    charged = {**charged, cause: charged.get(cause, 0) + 1}
    return replace(
        state,
        charged=charged,
        charged_step=state.charged_step if saved is None else max(saved, state.charged_step),
        losses={**state.losses, cause: state.losses.get(cause, 0) + 1},
        not_before=max(state.not_before or 0.0, now + backoff_seconds(seen, sum(charged.values()))),
    )


def backoff_seconds(seen: Observed, count: int) -> float:
    """The wait after the `count`th loss without a newer checkpoint between: none at first, then doubling."""
    assert seen.made_of is not None
    first = seen.made_of.job.spec.recovery.backoff.seconds
    return 0.0 if count <= 1 else min(MAX_BACKOFF_SECONDS, first * 2.0 ** min(count - 2, 64))
