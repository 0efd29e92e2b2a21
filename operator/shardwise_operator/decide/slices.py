"""How many slices a round has, of a job that may go on with fewer than it asks for (`recovery.minSlices`).

A slice is whole if each of its hosts has a pod that runs, or that has ended with the run: the next round finds places
for as many slices as are whole. Slices have no place of their own in what is trained, so their numbers begin at 0 in
each round.
"""

from dataclasses import replace

from shardwise_operator.observe.hosts import numbers_of
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import State


def next_slices(seen: Observed) -> int:
    """Return how many slices the next round is to have: as many as are whole, or as many as now if too few are."""
    whole = seen.slice_counts[0] - len(_broken(seen)) if seen.slice_counts else 0
    return next((count for count in seen.slice_counts if count <= whole), num_slices(seen))


def num_slices(seen: Observed) -> int:
    """Return how many slices this round has."""
    return seen.round_snapshot.job.spec.hardware.slices


def elastic(seen: Observed) -> bool:
    """Return whether the job may go on with fewer slices than it asks for."""
    return len(seen.slice_counts) > 1


def with_slices(seen: Observed, state: State) -> State:
    """Return the state in which the next round has `next_slices`, in places where none was broken if there are others.

    The pods of slices that it leaves out get another number too: placeholders have it.
    """
    if not elastic(seen):
        return state
    slices, broken = next_slices(seen), _broken(seen)
    state = replace(state.renewed(seen.absent_hosts), slices=slices if slices < seen.slice_counts[0] else None)
    place = next((place for each in sorted(broken) if (place := seen.place_of(each))), None)
    if place is None or slices >= num_slices(seen):
        return state
    return replace(state, avoid={**state.avoid, **dict.fromkeys(map(str, range(slices)), place)})


def words(slices: int, seen: Observed) -> str:
    """Return for people how many of the job's slices these are."""
    return f"{slices} of {seen.slice_counts[0]} slices"


def _broken(seen: Observed) -> set[int]:
    return {numbers_of(host)[0] for host in (*seen.hosts, *seen.absent_hosts) if not _is_there(seen, host)}


def _is_there(seen: Observed, host: str) -> bool:
    pod = seen.current(host)
    if pod is None or seen.on_a_lost_node(pod):
        return False
    return pod.running or (pod.ended and pod.record is not None and pod.record.code is not None)
