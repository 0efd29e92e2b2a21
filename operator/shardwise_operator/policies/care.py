"""A round that is under way and needs no decision: what is missing is made, what no longer counts goes."""

from shardwise_operator.config import Settings
from shardwise_operator.observed import Observed
from shardwise_operator.plan import Event, Plan, Step
from shardwise_operator.policies import creation, deadline, leading, patience, placement, sweeping
from shardwise_operator.policies.standing import stand
from shardwise_operator.state import State
from shardwise_operator.words import STALLED, TRUE


def care(seen: Observed, settings: Settings, now: float) -> Plan:
    """The writes that bring the round to what its state says, and how it stands."""
    steps: tuple[Step, ...] = (
        *sweeping.steps(seen, now),
        *creation.steps(seen, settings, now),
        *placement.steps(seen),
        *leading.steps(seen),
    )
    state = stand(seen, now)
    return Plan(state=state, steps=steps, events=_events(seen.state, state), again_seconds=_again_seconds(seen, now))


def _events(before: State, after: State) -> tuple[Event, ...]:
    """That the hosts do not get on. That they do is in the conditions: an event of every job would cost a request."""
    if _is_stalled(after) and not _is_stalled(before):
        return (Event("Warning", STALLED, after.message),)
    return ()


def _is_stalled(state: State) -> bool:
    condition = state.condition(STALLED)
    return condition is not None and condition.status == TRUE


def _again_seconds(seen: Observed, now: float) -> float | None:
    """When time alone changes the plan."""
    not_before = seen.state.not_before
    times = [
        deadline.remaining_seconds(seen, now),
        patience.remaining_seconds(seen, now),
        not_before - now if not_before is not None and not_before > now else None,
        *(max(1.0, pod.deleting_at - now + 1.0) for pod in seen.pods if pod.deleting_at is not None),
    ]
    return min((each for each in times if each is not None), default=None)
