"""A node that is about to be taken down: the run is asked for a save while there is time, and goes on.

What is lost on it later is a maintenance's (`losses.py`). The pod itself stays until its node takes it away: it has
notice then, too, and an announced end may be an hour off.
"""

from collections.abc import Iterator, Mapping

from shardwise_operator.observed import LEADER, Observed
from shardwise_operator.plan import AskSave

# The nodes of a slice are announced within seconds of each other: they share one save, and late ones a second.
_SHARED_SECONDS = 60.0
_STEPPING = "running"


def steps(seen: Observed, now: float) -> Iterator[AskSave]:
    """The request for a save, where one is due and the run takes steps that could be lost."""
    leader, poll, wanted = seen.current(LEADER), seen.poll, _wanted(seen)
    if not wanted or wait_seconds(seen, now) or leader is None or not leader.running or not leader.address:
        return
    if poll and poll.status and poll.fresh(now) and poll.status["phase"] == _STEPPING:
        yield AskSave(leader.address, wanted)


def wait_seconds(seen: Observed, now: float) -> float | None:
    """How long a save that is wanted has to wait for the last one; None where it has not."""
    asked_at = seen.state.save_asked_at
    if asked_at is None or now >= asked_at + _SHARED_SECONDS or not _wanted(seen):
        return None
    return asked_at + _SHARED_SECONDS - now


def words(step: AskSave) -> str:
    """Which nodes go."""
    nodes = ", ".join(f"{node} (host {host})" for host, node in step.leaving.items())
    return f"about to be taken down, so a save is asked for: {nodes}"


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
