"""What a pass needs to know of nodes. Those of the accelerator classes are watched; others are read by name.

A node or a place never counts as gone by the cache alone. The nodes of a class are watched by its labels, and a notice
on one of them wakes its jobs. A class without labels may have any node, so nothing is watched for it.
"""

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator

from shardwise.protocol.pods import JOB_LABEL, PLAN
from shardwise_operator.observe.caches import Caches, Reader
from shardwise_operator.observe.hosts import numbers_of
from shardwise_operator.observe.node import Node, read_node, trimmed
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import ENDED, Pod
from shardwise_operator.observe.snapshot import Snapshot
from shardwise_operator.observe.state import State
from shardwise_operator.runtime.cache import Cache
from shardwise_operator.runtime.errors import NotFoundError
from shardwise_operator.runtime.kinds import ACCELERATOR_CLASSES, NODES, PODS, Kind, Object, condition_of
from shardwise_operator.runtime.manager import Watch
from shardwise_operator.runtime.queue import Key

_RECENT_SECONDS = 10.0
_LOOK_AGAIN_SECONDS = 300.0
# Labels as Kubernetes has them, of a node.
_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PART = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_VALUE, _KEY = re.compile(f"({_NAME})?"), re.compile(rf"({_PART}(\.{_PART})*/)?{_NAME}")
_ON_A_NODE_THAT_IS_GONE = ("DeletionByTaintManager", "DeletionByPodGC")


class Nodes:
    """The nodes of a cluster, as far as they concern jobs."""

    def __init__(self, caches: Caches, api: Reader) -> None:
        """Read from `caches`, and from `api` what they do not have."""
        self._caches, self._api = caches, api
        self._lock = threading.Lock()
        self._asked: dict[str, tuple[float, Object | None]] = {}

    def known(self, pods: Iterable[Pod]) -> dict[str, Node]:
        """Return the watched nodes that the pods are on, by name."""
        found = {name: self._caches.get(NODES, "", name) for name in {pod.node for pod in pods if pod.node}}
        return {name: read_node(raw) for name, raw in found.items() if raw is not None}

    def lost(self, pods: Iterable[Pod], now: float) -> tuple[frozenset[str], frozenset[str]]:
        """Return the nodes that are gone, and those that are silent, of pods that should have ended."""
        gone, silent = set(), set()
        for node in {pod.node for pod in pods if pod.node and _overdue(pod, now)}:
            found = self._recent_node(node, now)
            if found is None:
                gone.add(node)
            elif condition_of(found, "Ready").get("status") == "Unknown":
                silent.add(node)
        return frozenset(gone), frozenset(silent)

    def pools(self, snapshot: Snapshot | None, state: State, pods: Iterable[Pod]) -> Iterator[tuple[int, str]]:
        """Yield, for each slice that still has pods to place, where its bound pods are."""
        label = snapshot.placement_label if snapshot else None
        if snapshot is None or label is None:
            return
        waiting = {pod.slice for pod in pods if pod.gated}
        waiting |= {numbers_of(host)[0] for host in snapshot.hosts if host not in state.pods}
        current = [pod for pod in pods if pod.key != PLAN and state.pods.get(pod.key) == pod.uid]
        bound = {pod.slice: pod.node for pod in current if pod.alive and pod.node}
        for slice_ in sorted(waiting & bound.keys()):
            node = self._node(bound[slice_])
            place = node["metadata"].get("labels", {}).get(label) if node else None
            if place is not None:
                yield slice_, place

    def gone_places(self, seen: Observed) -> frozenset[int]:
        """Return the slices with a pod that waits for a place that has no nodes left."""
        waiting = {(pod.slice, place) for pod, place in seen.settling()}
        return frozenset(slice_ for slice_, place in waiting if not self._has_nodes(seen, place))

    def _recent_node(self, name: str, now: float) -> Object | None:
        """Return a node as it was a moment ago; None if it is gone. Answers are kept: a node may have many pods."""
        if watched := self._caches.get(NODES, "", name):
            return watched
        with self._lock:
            self._asked = {each: known for each, known in self._asked.items() if now - known[0] < _RECENT_SECONDS}
            if name in self._asked:
                return self._asked[name][1]
        found = self._node(name)
        with self._lock:
            self._asked[name] = (now, found)
        return found

    def _has_nodes(self, seen: Observed, place: str) -> bool:
        label = seen.placement_label
        assert label is not None
        if any(node["metadata"].get("labels", {}).get(label) == place for node in self._caches.list(NODES)):
            return True
        return any(page.items for page in self._api.pages(NODES, "", labels=f"{label}={place}"))

    def _node(self, name: str) -> Object | None:
        try:
            return self._caches.get(NODES, "", name) or self._api.get(NODES, "", name)
        except NotFoundError:
            return None


def _overdue(pod: Pod, now: float) -> bool:
    if pod.deleting_at is None or pod.ended:
        return False
    return pod.disruption in _ON_A_NODE_THAT_IS_GONE or now > pod.deleting_at


class NodeWatch:
    """The watches of nodes, one for each set of labels."""

    def __init__(self, cache: Cache, watch: Callable[[Watch], None], unwatch: Callable[[Kind, str], None]) -> None:
        """Read classes and pods from `cache`; `watch` starts a watch, unless it is there, and `unwatch` ends one."""
        self._cache, self._watch, self._unwatch = cache, watch, unwatch
        self._watched: set[str] = set()

    def reconcile(self) -> float | None:
        """Watch the nodes of every class from now on, and others no longer than pods run there.

        Return in how many seconds to look again whether they do, None for never: a pod was made of a class as it was.
        """
        wanted = set(filter(None, map(selector, self._cache.list(ACCELERATOR_CLASSES))))
        for labels in wanted:
            self._watch(Watch(kind=NODES, keys=self._jobs_on, labels=labels, keep=trimmed))
        self._watched |= wanted
        for labels in self._without_pods(self._watched - wanted):
            self._unwatch(NODES, labels)
            self._watched.remove(labels)
        return _LOOK_AGAIN_SECONDS if self._watched > wanted else None

    def _without_pods(self, watched: Collection[str]) -> list[str]:
        """Return the selectors whose nodes have no pod that goes on; none while pods wait, which may go to any."""
        going_on = [pod for pod in self._cache.list(PODS) if pod["status"].get("phase") not in ENDED] if watched else []
        names = {pod["spec"].get("nodeName") for pod in going_on}
        if None in names:
            return []
        nodes = [node for name in names if (node := self._cache.get(NODES, "", name)) is not None]
        return [labels for labels in watched if not any(_selects(labels, node) for node in nodes)]

    def _jobs_on(self, node: Object) -> Iterator[Key]:
        """Yield the jobs with a pod on a node that is about to go; other changes of a node show in its pods."""
        if not read_node(node).leaving:
            return
        for pod in self._cache.list(PODS):
            metadata = pod["metadata"]
            if pod["spec"].get("nodeName") == node["metadata"]["name"] and JOB_LABEL in metadata["labels"]:
                yield metadata["namespace"], metadata["labels"][JOB_LABEL]


def _selects(labels: str, node: Object) -> bool:
    """Return whether a node has the labels of a selector that `selector` made."""
    has = node["metadata"].get("labels", {})
    parts = (part.partition("=") for part in labels.split(","))
    return all(key in has and (not equals or has[key] == value) for key, equals, value in parts)


def selector(machine: Object) -> str:
    """Return the label selector of a class's nodes, for every topology and machine.

    "" if the class has no labels, or such as no node can have: the API server would refuse that watch again and again,
    and an operator that waits for it is not ready.
    """
    labels = machine["spec"].get("nodeSelector", {})
    known = {key: None if "{" in value else value for key, value in sorted(labels.items())}
    if not all(_KEY.fullmatch(key) and _VALUE.fullmatch(value or "") for key, value in known.items()):
        return ""
    return ",".join(key if value is None else f"{key}={value}" for key, value in known.items())
