"""What a second loss in one place changes: a host's next pod goes to another node, a slice is placed anew.

A slice of a class with a `placementLabel` has one place for all of its hosts, so it moves as a whole. Without one every
node is as good as the next, and the host goes elsewhere alone. What somebody asked for (a deletion, an eviction, a
maintenance) says nothing of the place. Used by the policies that lose pods, or give them back: losses, vanished,
patience, outcome.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from shardwise_operator.observed import Observed
from shardwise_operator.policies.pending import waits_for_image
from shardwise_operator.state import State, next_attempts
from shardwise_operator.words import Lost

_ASKED_FOR = (Lost.EVICTION, Lost.MAINTENANCE)


def climb(seen: Observed, state: State, causes: Mapping[str, Lost], *, at_once: Collection[str]) -> State:
    """The state after hosts of one slice were lost at once, each to its cause.

    Of those in `at_once` the place shall not take a second one: it still holds what the first one had. A slice that
    has a place of its own has lost one thing there, however many of its hosts.
    """
    for host, cause in causes.items():
        after = _climb(seen, state, host, cause, at_once=host in at_once)
        if after is not state and seen.place_of(int(host.split("-")[0])):
            return after
        state = after
    return state


def not_whole(seen: Observed, state: State) -> State:
    """The state after places in which not all pods came to run within their time: what is next rather goes elsewhere.

    A slice leaves its place at once, for that costs nothing where there is no other; a host its node the second time.
    """
    label = seen.made_of.placement_label if seen.made_of else None
    for pod in seen.current_pods():
        if pod.phase != "Pending" or waits_for_image(pod):
            continue
        unit, where = (str(pod.slice), seen.place_of(pod.slice)) if label else (pod.key, pod.node)
        if where is None:
            continue
        if label or state.lost_at.get(unit) == where:
            lost_at = {key: value for key, value in state.lost_at.items() if key != unit}
            state = replace(state, lost_at=lost_at, avoid={**state.avoid, unit: where})
        else:
            state = replace(state, lost_at={**state.lost_at, unit: where})
    return state


def climbed(before: State, after: State) -> Iterator[str]:
    """In words, what goes elsewhere since."""
    for unit in before.lost_at.keys() - after.lost_at.keys():
        what = "host" if "-" in unit else "slice"
        yield f"{what} {unit} has lost two pods in {after.avoid[unit]}, and goes elsewhere"


def _climb(seen: Observed, state: State, host: str, cause: Lost, *, at_once: bool) -> State:
    pod = seen.current(host)
    if cause in _ASKED_FOR or pod is None or (cause == Lost.UNKNOWN and pod.deleting_at is not None):
        return state
    place = seen.place_of(pod.slice)
    unit, where = (str(pod.slice), place) if place else (host, pod.node)
    if where is None:
        return state
    if state.lost_at.get(unit) != where and not at_once:
        return replace(state, lost_at={**state.lost_at, unit: where})
    lost_at = {key: value for key, value in state.lost_at.items() if key != unit}
    state = replace(state, lost_at=lost_at, avoid={**state.avoid, unit: where})
    return anew(seen, state, pod.slice) if place else state


def anew(seen: Observed, state: State, slice_: int) -> State:
    """The state with the whole slice given back: its hosts get new numbers, and its next host 0 finds it a place."""
    hosts = [
        host
        for host in seen.hosts
        if int(host.split("-")[0]) == slice_
        and state.attempts.get(host) == seen.state.attempts.get(host)  # else it has a new number already
        and (host in state.pods or seen.current(host))
    ]
    pods = {host: uid for host, uid in state.pods.items() if host not in hosts}
    return replace(state, attempts=next_attempts(state.attempts, hosts), pods=pods)
