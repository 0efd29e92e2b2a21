"""How many slices a round has, of a job that may go on with fewer than it asks for (`recovery.minSlices`).

A slice is whole if each of its hosts has a pod that runs, or that has ended with the run: the next round finds places
for as many slices as are whole. Slices have no place of their own in what is trained, so their numbers begin at 0 in
each round.
"""

from dataclasses import replace

from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Growth, State

_MAX_DOUBLINGS = 5
_MOST_PLACES = 3  # a status has 253 characters for them, and the name of a place may have 63


def next_slices(seen: Observed) -> int:
    """Return how many slices the next round is to have: as many as are whole, or as many as now if too few are."""
    whole = max(seen.slice_counts[0], num_slices(seen)) - len(seen.broken_slices) if seen.slice_counts else 0
    return next((count for count in seen.slice_counts if count <= whole), num_slices(seen))


def num_slices(seen: Observed) -> int:
    """Return how many slices this round has."""
    return seen.round_snapshot.job.spec.hardware.slices


def elastic(seen: Observed) -> bool:
    """Return whether the job may go on with fewer slices than it asks for, or does so still.

    Where a queue has chosen a node for each of its hosts, it also chooses others for those that are lost.
    """
    if seen.queueing and seen.queueing.admission and seen.queueing.admission.domains:
        return False
    return len(seen.slice_counts) > 1 or bool(seen.slice_counts and seen.state.slices)


def all_run(seen: Observed) -> bool:
    """Return whether each host of the round has a pod that runs and is not about to be deleted."""
    return sum(pod.running for pod in seen.current_pods()) == len(seen.hosts)


def with_slices(seen: Observed, state: State, now: float) -> State:
    """Return the state in which the next round has `next_slices`, in places where none was broken if there are others.

    The pods of slices that it leaves out get another number too: placeholders have it.
    """
    if not elastic(seen):
        return replace(state, growth=replace(state.growth, asked_at=None))
    slices, before = next_slices(seen), num_slices(seen)
    if seen.state.growth.begun and slices < before:
        state = in_vain(seen, state, now)
    else:
        begun = slices > before or seen.state.growth.begun
        state = replace(state, growth=replace(state.growth, asked_at=None, begun=begun))
    state = replace(state.renewed(seen.absent_hosts), slices=slices if slices < seen.slice_counts[0] else None)
    places = sorted({place for each in seen.broken_slices if (place := seen.place_of(each)) is not None})
    if not places:
        return state
    avoided = ",".join(places[:_MOST_PLACES])
    return replace(state, avoid={**state.avoid, **dict.fromkeys(map(str, range(seen.slice_counts[0])), avoided)})


def still_fewer(seen: Observed) -> int | None:
    """Return how many slices the round has, None for all: without a snapshot yet, its job may have been changed."""
    slices = seen.state.slices
    return None if seen.desired and slices != seen.desired.job.spec.hardware.slices else slices


def in_vain(seen: Observed, state: State, now: float) -> State:
    """Return the state after slices were of no use: they are asked for again later, each time twice as late."""
    count = state.growth.in_vain + 1
    wait = seen.round_snapshot.job.spec.recovery.replace_within.seconds * 2.0 ** min(count - 1, _MAX_DOUBLINGS)
    return replace(state, growth=Growth(in_vain=count, not_before=now + wait))


def words(slices: int, seen: Observed) -> str:
    """Return for people how many of the job's slices these are."""
    return f"{slices} of {seen.slice_counts[0]} slices" if seen.slice_counts else f"{slices} slices"
