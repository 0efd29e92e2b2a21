"""What a loss costs: the budgets of `spec.recovery.restarts`, and the backoff before a lost pod is created again.

A newer checkpoint resets both: a run that makes progress may lose any number of pods.
"""

from dataclasses import replace

from shardwise.job.spec.recovery import backoff_seconds, charged, left_of
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import State
from shardwise_operator.reasons import Lost


def budget(seen: Observed, cause: Lost) -> int:
    """Return how many losses for `cause` a job may have without a newer checkpoint in between."""
    return seen.round_snapshot.job.spec.recovery.restarts.of(cause)


def left(seen: Observed, state: State, cause: Lost) -> str:
    """Return for people how many losses for `cause` a job may still have, after those that the state has charged."""
    return left_of(state.charged, cause, budget(seen, cause))


def charge(seen: Observed, state: State, cause: Lost, now: float) -> State | None:
    """Return the state with one more loss and its backoff; None if the budget for `cause` is used up."""
    saved, charged_step = seen.checkpoint_step, state.charged_step
    newer = saved is not None and (charged_step is None or saved > charged_step)
    counts = charged(state.charged, cause, budget(seen, cause), newer=newer)
    if counts is None:
        return None
    return replace(
        state,
        charged=counts,
        charged_step=saved if newer else charged_step,
        losses={**state.losses, cause: state.losses.get(cause, 0) + 1},
        not_before=max(state.not_before or 0.0, now + wait_seconds(seen, sum(counts.values()))),
    )


def wait_seconds(seen: Observed, count: int) -> float:
    """Return the wait after the `count`th loss without a newer checkpoint."""
    return backoff_seconds(seen.round_snapshot.job.spec.recovery.backoff.seconds, count)
