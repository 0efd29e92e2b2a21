"""A round that is under way and needs no decision: what is missing is made, what no longer counts goes."""

from collections.abc import Iterator
from dataclasses import replace

from shardwise_operator.config import Settings
from shardwise_operator.observed import Observed
from shardwise_operator.plan import Event, Plan, Step
from shardwise_operator.policies import (
    creation,
    deadline,
    leading,
    maintenance,
    notice,
    patience,
    pinning,
    placement,
    preflight,
    queueing,
    stranded,
    sweeping,
    vanished,
)
from shardwise_operator.policies.standing import stand
from shardwise_operator.state import State
from shardwise_operator.words import NOTICE_TOO_SHORT, STALLED, TRUE

_MOST_LOOK_AGAIN_SECONDS = 300.0


def care(seen: Observed, settings: Settings, now: float) -> Plan:
    """The writes that bring the round to what its state says, and how it stands."""
    steps: tuple[Step, ...] = (
        *maintenance.steps(seen, now),
        *queueing.steps(seen),
        *sweeping.steps(seen, now),
        *creation.steps(seen, settings, now),
        *placement.steps(seen),
        *leading.steps(seen),
    )
    state = notice.judge(seen, stand(seen, now), now)
    state = replace(state, leaving=maintenance.leaving(seen), image=pinning.image(seen))
    events = tuple(_events(seen.state, state))
    return Plan(state=state, steps=steps, events=events, again_seconds=_again_seconds(seen, now))


def _events(before: State, after: State) -> Iterator[Event]:
    """What is not right, by a condition of its own; what else there is to tell follows from the status."""
    for kind in (STALLED, NOTICE_TOO_SHORT):
        known, said = before.condition(kind), after.condition(kind)
        if said and said.status == TRUE and not (known and known.status == TRUE):
            yield Event("Warning", kind, said.message)


def _again_seconds(seen: Observed, now: float) -> float | None:
    """When time alone changes the plan."""
    not_before = seen.state.not_before
    times = [
        deadline.remaining_seconds(seen, now),
        patience.remaining_seconds(seen, now),
        patience.look_again_seconds(seen),
        preflight.remaining_seconds(seen, now),
        maintenance.wait_seconds(seen, now),
        vanished.wait_seconds(seen),
        stranded.wait_seconds(seen, now),
        not_before - now if not_before is not None and not_before > now else None,
        *(_look_again_seconds(pod.deleting_at, now) for pod in seen.pods if pod.deleting_at is not None),
    ]
    return min((each for each in times if each is not None), default=None)


def _look_again_seconds(deleting_at: float, now: float) -> float:
    """When to look for a pod that is to be gone then: of a dead node it stays for long, so twice as late each time."""
    if now < deleting_at:
        return deleting_at - now + 1.0
    return min(_MOST_LOOK_AGAIN_SECONDS, max(1.0, now - deleting_at))
