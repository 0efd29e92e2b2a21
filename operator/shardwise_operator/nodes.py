"""What a pass asks about nodes. Those of the classes are in the cache (`node_watch.py`); others are asked for by name.

Called by `observe.py`. That a node or a place is gone is never the cache's word alone.
"""

import threading
from collections.abc import Iterable, Iterator

from shardwise.job.pods import PLAN
from shardwise_operator.frozen import Frozen
from shardwise_operator.node import Node, read_node
from shardwise_operator.observed import Observed
from shardwise_operator.pod import Pod
from shardwise_operator.runtime.errors import NotFoundError
from shardwise_operator.runtime.kinds import NODES, Object
from shardwise_operator.state import State
from shardwise_operator.views import Caches, Reader

_RECENT_SECONDS = 10.0
_ON_A_NODE_THAT_IS_GONE = ("DeletionByTaintManager", "DeletionByPodGC")


class Nodes:
    """The nodes of a cluster, as far as jobs are concerned."""

    def __init__(self, caches: Caches, api: Reader) -> None:
        """Read from `caches`, and from `api` what is not in them."""
        self._caches, self._api = caches, api
        self._lock = threading.Lock()
        self._asked: dict[str, tuple[float, Object | None]] = {}

    def known(self, pods: Iterable[Pod]) -> dict[str, Node]:
        """The watched nodes that the pods are on, by name."""
        found = {name: self._caches.get(NODES, "", name) for name in {pod.node for pod in pods if pod.node}}
        return {name: read_node(raw) for name, raw in found.items() if raw is not None}

    def lost(self, pods: Iterable[Pod], now: float) -> tuple[frozenset[str], frozenset[str]]:
        """The nodes that are no more, and those that say nothing, of pods that are stuck."""
        gone, silent = set(), set()
        for node in {pod.node for pod in pods if pod.node and _stuck(pod, now)}:
            found = self._found(node, now)
            if found is None:
                gone.add(node)
                continue
            conditions = found.get("status", {}).get("conditions", [])
            if any(each["type"] == "Ready" and each["status"] == "Unknown" for each in conditions):
                silent.add(node)
        return frozenset(gone), frozenset(silent)

    def pools(self, frozen: Frozen | None, state: State, pods: Iterable[Pod]) -> Iterator[tuple[int, str]]:
        """The place of each slice that has one and needs to know it, by a pod that is bound there."""
        label = frozen.placement_label if frozen else None
        if frozen is None or label is None:
            return
        waiting = {pod.slice for pod in pods if pod.gated}
        waiting |= {int(host.split("-")[0]) for host in frozen.hosts if host not in state.pods}
        bound = {
            pod.slice: pod.node
            for pod in pods
            if pod.key != PLAN
            and pod.node
            and not pod.ended
            and pod.deleting_at is None
            and state.pods.get(pod.key) == pod.uid
        }
        for slice_ in sorted(waiting & bound.keys()):
            node = self._node(bound[slice_])
            place = node["metadata"].get("labels", {}).get(label) if node else None
            if place is not None:
                yield slice_, place

    def gone_places(self, seen: Observed) -> frozenset[int]:
        """The slices of which a pod waits for a node of a place that has no node any more."""
        waiting = {(pod.slice, place) for pod, place in seen.settling()}
        return frozenset(slice_ for slice_, place in waiting if not self._has_nodes(seen, place))

    def _found(self, name: str, now: float) -> Object | None:
        """A node, as it was a moment ago; None where it is no more. Many pods of many jobs may be on a dead one."""
        if watched := self._caches.get(NODES, "", name):
            return watched
        with self._lock:
            self._asked = {each: known for each, known in self._asked.items() if now - known[0] < _RECENT_SECONDS}
            if name in self._asked:
                return self._asked[name][1]
        try:
            found = self._api.get(NODES, "", name)
        except NotFoundError:
            found = None
        with self._lock:
            self._asked[name] = (now, found)
        return found

    def _has_nodes(self, seen: Observed, place: str) -> bool:
        label = seen.made_of.placement_label if seen.made_of else None
        assert label is not None
        if any(node["metadata"].get("labels", {}).get(label) == place for node in self._caches.list(NODES)):
            return True
        return any(page.items for page in self._api.pages(NODES, "", labels=f"{label}={place}"))

    def _node(self, name: str) -> Object | None:
        try:
            return self._caches.get(NODES, "", name) or self._api.get(NODES, "", name)
        except NotFoundError:
            return None


def _stuck(pod: Pod, now: float) -> bool:
    if pod.deleting_at is None or pod.ended:
        return False
    return pod.disruption in _ON_A_NODE_THAT_IS_GONE or now > pod.deleting_at
