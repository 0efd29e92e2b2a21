"""A node that is about to be taken down: the run is asked to save while there is time, and goes on.

What is lost on that node later is charged to `maintenance` (`losses.py`). The pod itself stays until its node ends it:
it has notice then, too, and an announced end may be an hour off.
"""

from collections.abc import Mapping
from dataclasses import replace

from shardwise_operator.decide.plan import Event, Plan, RequestSave
from shardwise_operator.observe.observed import Observed
from shardwise_operator.reasons import LEAVING

# The nodes of a slice are announced within seconds of each other: they share one save, and late ones a second one.
_SHARED_SECONDS = 60.0
_AGAIN_SECONDS = 5.0
_STEPPING = "running"


def decide(seen: Observed, now: float) -> Plan:
    """Ask for a save if one is due, and drop the notices that no longer hold."""
    request = save_request(seen, now)
    return Plan(state=replace(seen.state, leaving=leaving(seen)), steps=(request,) if request else ())


def wake(seen: Observed, now: float) -> float | None:
    """Return when to look at a wanted save again: the last save is still shared, or host 0 did not take the request."""
    return max(_shared_seconds(seen, now), _AGAIN_SECONDS) if _wanted(seen) else None


def save_request(seen: Observed, now: float) -> RequestSave | None:
    """Return the request for a save; None if none is due, or the run takes no steps that could be lost."""
    leader, status, wanted = seen.leader, seen.fresh_status(now), _wanted(seen)
    if not wanted or _shared_seconds(seen, now) or leader is None or leader.address is None:
        return None
    if status is None or status.phase != _STEPPING:
        return None
    return RequestSave(leader.address, wanted, Event(LEAVING, _message(wanted)))


def leaving(seen: Observed) -> Mapping[str, str]:
    """Return the hosts with a known notice, without those whose node stays after all and those that have left it."""
    current = {pod.key: pod.node for pod in seen.current_pods()}
    nodes, known = seen.nodes, seen.state.leaving
    return {
        host: node
        for host, node in known.items()
        if current.get(host) == node and (node not in nodes or nodes[node].leaving)
    }


def _wanted(seen: Observed) -> dict[str, str]:
    """Return the nodes that are about to go, by host, for which no save was asked for yet."""
    alive = [pod for pod in seen.current_pods() if pod.running and pod.node in seen.nodes]
    going = {pod.key: pod.node for pod in alive if pod.node and seen.nodes[pod.node].leaving}
    return {host: node for host, node in going.items() if seen.state.leaving.get(host) != node}


def _shared_seconds(seen: Observed, now: float) -> float:
    """Return for how long the last requested save still counts for every notice; 0 if it no longer does."""
    asked_at = seen.state.save_asked_at
    return 0.0 if asked_at is None else max(0.0, asked_at + _SHARED_SECONDS - now)


def _message(going: Mapping[str, str]) -> str:
    nodes = ", ".join(f"{node} (host {host})" for host, node in going.items())
    return f"about to be taken down, so a save is asked for: {nodes}"
