"""What a pass asks of nodes: of a dead one now and then, however many pods and jobs are on it."""

from collections.abc import Iterator, Sequence

from tests.operator.building import NOW, pod

from shardwise_operator.observe.nodes import Nodes
from shardwise_operator.runtime.errors import NotFoundError
from shardwise_operator.runtime.kinds import Kind, Object
from shardwise_operator.runtime.transport import Page

SILENT: Object = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
STUCK = [pod(f"0-{host}", node="dead", deleting_at=NOW - 60) for host in range(4)]


class _Cluster:
    """The nodes that are watched, those that are there, and how often anybody asked."""

    def __init__(self, *, watched: dict[str, Object], there: dict[str, Object]) -> None:
        self._watched, self._there = watched, there
        self.asked: list[str] = []

    def lookup(self, name: str) -> Object:
        self.asked.append(name)
        if name not in self._there:
            raise NotFoundError(404, "NotFound", name)
        return self._there[name]

    def caches(self) -> "_Caches":
        return _Caches(self._watched)


class _Caches:
    def __init__(self, nodes: dict[str, Object]) -> None:
        self._nodes = nodes

    def get(self, _kind: Kind, _namespace: str, name: str) -> Object | None:
        return self._nodes.get(name)

    def by_owner(self, _kind: Kind, _namespace: str, _owner_uid: str) -> Sequence[Object]:
        return []

    def list(self, _kind: Kind) -> Sequence[Object]:
        return list(self._nodes.values())


class _Reader:
    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster

    def get(self, _kind: Kind, _namespace: str, name: str) -> Object:
        return self._cluster.lookup(name)

    def pages(self, _kind: Kind, _namespace: str = "", *, labels: str = "") -> Iterator[Page]:  # noqa: ARG002
        return iter(())


def _nodes(cluster: _Cluster) -> Nodes:
    return Nodes(cluster.caches(), _Reader(cluster))


def test_a_dead_node_is_asked_for_now_and_then() -> None:
    """Once for all of its pods and for all passes of ten seconds."""
    cluster = _Cluster(watched={}, there={"dead": SILENT})
    nodes = _nodes(cluster)

    for second in range(20):
        assert nodes.lost(STUCK, NOW + second) == (frozenset(), frozenset({"dead"}))

    assert cluster.asked == ["dead", "dead"]


def test_a_node_that_is_watched_is_not_asked_for() -> None:
    """Its conditions come by themselves; that it is gone is asked for."""
    watched, gone = _Cluster(watched={"dead": SILENT}, there={}), _Cluster(watched={}, there={})

    assert _nodes(watched).lost(STUCK, NOW) == (frozenset(), frozenset({"dead"}))
    assert _nodes(gone).lost(STUCK, NOW) == (frozenset({"dead"}), frozenset())
    assert (watched.asked, gone.asked) == ([], ["dead"])
