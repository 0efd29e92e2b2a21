"""What a second loss in one place changes: a host's next pod goes to another node, a slice to another place.

A slice of a class with a `placementLabel` has one place for all of its hosts, so it moves as a whole. Without one every
node is as good as the next, and the host moves alone. A loss that was asked for (a deletion, an eviction, a
maintenance) says nothing about the place.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from shardwise_operator.decide.pending import waits_for_image
from shardwise_operator.observe.hosts import numbers_of
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import State
from shardwise_operator.reasons import Lost

_ASKED_FOR = (Lost.EVICTION, Lost.MAINTENANCE)


def avoid_after_losses(seen: Observed, state: State, causes: Mapping[str, Lost], *, at_once: Collection[str]) -> State:
    """Return the state after hosts of one slice were lost together, each for its cause.

    The hosts in `at_once` leave their place after the first loss, because it still holds what the lost pod had. If the
    slice has a place of its own, all its losses together count as one loss there.
    """
    for host, cause in causes.items():
        after = _avoid_after_loss(seen, state, host, cause, at_once=host in at_once)
        if after is not state and seen.place_of(numbers_of(host)[0]):
            return after
        state = after
    return state


def avoid_after_timeout(seen: Observed, state: State) -> State:
    """Return the state after pods did not all start in time: their next pods prefer other places.

    A slice leaves its place at once, which costs nothing if there is no other; a host leaves its node the second time.
    """
    label = seen.placement_label
    for pod in seen.current_pods():
        if pod.phase != "Pending" or waits_for_image(pod):
            continue
        unit, place = (str(pod.slice), seen.place_of(pod.slice)) if label else (pod.key, pod.node)
        if place is None:
            continue
        if label or state.lost_at.get(unit) == place:
            state = _avoid(state, unit, place)
        else:
            state = replace(state, lost_at={**state.lost_at, unit: place})
    return state


def relocations(before: State, after: State, *, stuck: Collection[str]) -> Iterator[str]:
    """Yield a message for each host or slice that goes elsewhere in `after` and did not in `before`.

    The hosts in `stuck` do so after one loss, and a slice with one of them too.
    """
    left = before.lost_at.keys() - after.lost_at.keys()
    for unit in sorted(left | {unit for unit, place in after.avoid.items() if before.avoid.get(unit) != place}):
        if "-" in unit:
            what = f"host {unit} {'is stuck' if unit in stuck else 'has lost two pods'}"
        else:
            has_stuck = any(str(numbers_of(host)[0]) == unit for host in stuck)
            what = f"slice {unit} has {'a stuck host' if has_stuck else 'lost two pods'}"
        yield f"{what} in {after.avoid[unit]}, and goes elsewhere"


def relocate_slice(seen: Observed, state: State, slice_: int) -> State:
    """Return the state with all pods of the slice released: its hosts get new attempts, and its host 0 a new place."""
    hosts = [
        host
        for host in seen.hosts
        if numbers_of(host)[0] == slice_
        and state.attempts.get(host) == seen.state.attempts.get(host)  # else this pass has given it a new one already
        and (host in state.pods or seen.current(host))
    ]
    return state.renewed(hosts)


def _avoid_after_loss(seen: Observed, state: State, host: str, cause: Lost, *, at_once: bool) -> State:
    pod = seen.current(host)
    if cause in _ASKED_FOR or pod is None or (cause == Lost.UNKNOWN and pod.deleting_at is not None):
        return state
    slice_place = seen.place_of(pod.slice)
    unit, place = (str(pod.slice), slice_place) if slice_place else (host, pod.node)
    if place is None:
        return state
    if state.lost_at.get(unit) != place and not at_once:
        return replace(state, lost_at={**state.lost_at, unit: place})
    state = _avoid(state, unit, place)
    return relocate_slice(seen, state, pod.slice) if slice_place else state


def _avoid(state: State, unit: str, place: str) -> State:
    lost_at = {key: value for key, value in state.lost_at.items() if key != unit}
    return replace(state, lost_at=lost_at, avoid={**state.avoid, unit: place})
