"""Maintain a round that is under way: create what is missing, delete what no longer counts, report the phase."""

from collections.abc import Iterator
from dataclasses import replace

from shardwise_operator.config import Settings
from shardwise_operator.decide import phase
from shardwise_operator.decide.plan import Event, Plan, Policy, Step, soonest
from shardwise_operator.decide.policies import (
    cleanup,
    creation,
    image_pinning,
    more_slices,
    network_policy,
    node_maintenance,
    notice,
    old_rounds,
    placeholders,
    placement,
    queueing,
)
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import State
from shardwise_operator.reasons import NOTICE_TOO_SHORT, SLICES_BACK, STALLED, TRUE


def _policies(settings: Settings) -> tuple[Policy, ...]:
    """Return the policies in their order, which is that of their steps: one that is refused holds back all after it."""
    return (
        node_maintenance,  # first: its node is about to go
        queueing.QueuePolicy(settings),  # before the creation, which waits for its admission
        cleanup,  # deleted pods free nodes for new ones
        creation.Creation(settings),
        placeholders,  # after the creation: the hosts of the round come first
        placement,  # after the pods of a slice's first host, which bring the others their place
        network_policy,  # it needs host 0's pod
        phase,  # after all steps: they go by the state as it was written
        more_slices,  # after the phase, by which it goes
        notice,  # its condition comes beside those of the phase
        old_rounds,  # after all that the round needs
        image_pinning,  # after the creation: the pods of one pass are made of one image
    )


def maintain(seen: Observed, settings: Settings, now: float) -> Plan:
    """Return the steps that bring the round to its state, and the state with its phase and conditions."""
    policies, latest, steps = _policies(settings), _going_on(seen), list[Step]()
    for policy in policies:
        plan = policy.decide(latest, now)
        if plan is not None:
            steps += plan.steps
            # Only if it differs: an Observed of thousands of pods has an index of its own to build.
            latest = latest if plan.state == latest.state else replace(latest, state=plan.state)
    return Plan(
        state=latest.state,
        steps=tuple(steps),
        events=tuple(_events(seen, latest.state)),
        requeue_after_seconds=soonest(policy.wake(seen, now) for policy in policies),
    )


def _going_on(seen: Observed) -> Observed:
    """Return a round that goes on though it was to stop, as its deadline was made longer: the next stop saves again."""
    asked = seen.state.stop_asked_at is not None
    return replace(seen, state=replace(seen.state, stop_asked_at=None)) if asked else seen


def _events(seen: Observed, after: State) -> Iterator[Event]:
    """Yield a warning for each condition that has become true; all other events follow from the written status.

    That slices are about to be taken in is one too.
    """
    before = seen.state
    if after.growth.asked_at is not None and before.growth.asked_at is None:
        yield Event(SLICES_BACK, more_slices.message(seen))
    for kind in (STALLED, NOTICE_TOO_SHORT):
        known, latest = before.condition(kind), after.condition(kind)
        if latest and latest.status == TRUE and not (known and known.status == TRUE):
            yield Event(kind, latest.message)
