"""A node that is about to be taken down: the run is asked for a save while there is time, and goes on.

What is lost on it later is a maintenance's (`losses.py`). The pod itself stays until its node takes it away: it has
notice then, too, and an announced end may be an hour off.
"""

from collections.abc import Iterator, Mapping

from shardwise_operator.observed import LEADER, Observed
from shardwise_operator.plan import AskSave, Event
from shardwise_operator.words import LEAVING

# The nodes of a slice are announced within seconds of each other: they share one save, and late ones a second.
_SHARED_SECONDS = 60.0
_AGAIN_SECONDS = 5.0
_STEPPING = "running"


def steps(seen: Observed, now: float) -> Iterator[AskSave]:
    """The request for a save, where one is due and the run takes steps that could be lost."""
    leader, poll, wanted = seen.current(LEADER), seen.poll, _wanted(seen)
    if not wanted or _shared(seen, now) or leader is None or not leader.running or not leader.address:
        return
    if poll and poll.status and poll.fresh(now) and poll.status["phase"] == _STEPPING:
        yield AskSave(leader.address, wanted, Event("Warning", LEAVING, _words(wanted)))


def wait_seconds(seen: Observed, now: float) -> float | None:
    """When to look again at a save that is wanted: it waits for the last one, or host 0 did not take the request."""
    return max(_shared(seen, now), _AGAIN_SECONDS) if _wanted(seen) else None


def leaving(seen: Observed) -> Mapping[str, str]:
    """The hosts for which a save was asked for, without those whose node stays after all, or that have left it."""
    there = {pod.key: pod.node for pod in seen.current_pods()}
    nodes, known = seen.nodes, seen.state.leaving
    return {
        host: node
        for host, node in known.items()
        if there.get(host) == node and (node not in nodes or nodes[node].leaving)
    }


def _wanted(seen: Observed) -> dict[str, str]:
    """The nodes that are about to go, by host, for which no save was asked for yet."""
    alive = [pod for pod in seen.current_pods() if pod.running and pod.node in seen.nodes]
    going = {pod.key: pod.node for pod in alive if pod.node and seen.nodes[pod.node].leaving}
    return {host: node for host, node in going.items() if seen.state.leaving.get(host) != node}


def _shared(seen: Observed, now: float) -> float:
    """How long the save that was last asked for is everybody's, in seconds from now; 0 when it no longer is."""
    asked_at = seen.state.save_asked_at
    return 0.0 if asked_at is None else max(0.0, asked_at + _SHARED_SECONDS - now)


def _words(going: Mapping[str, str]) -> str:
    nodes = ", ".join(f"{node} (host {host})" for host, node in going.items())
    return f"about to be taken down, so a save is asked for: {nodes}"
