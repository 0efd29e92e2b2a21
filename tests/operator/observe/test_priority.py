"""The priority of a job in its queue, by the class that counts."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from tests.operator.building import asking, manifest, snapshot

from shardwise_operator.observe.priority import Priority, read_priority
from shardwise_operator.runtime.errors import NotFoundError
from shardwise_operator.runtime.kinds import PRIORITY_CLASSES, WORKLOAD_PRIORITY_CLASSES, Kind


class _Api:
    """An API server with these classes, by kind and name."""

    def __init__(self, classes: dict[tuple[Kind, str], dict[str, Any]]) -> None:
        self._classes = classes

    def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        """Return one class."""
        assert namespace == ""
        if (kind, name) not in self._classes:
            raise NotFoundError(404, "NotFound", name)
        return self._classes[kind, name]

    def pages(self, kind: Kind, namespace: str = "", *, labels: str = "") -> Iterator[Any]:
        """Yield all of a kind."""
        del namespace, labels
        items = [{"metadata": {"name": name}, **each} for (of, name), each in self._classes.items() if of == kind]
        yield SimpleNamespace(items=items)


def test_the_label_goes_before_the_pods_own_class() -> None:
    """As it does for Kueue's own jobs; without either the class counts that the cluster has for such pods."""
    classes = {
        (WORKLOAD_PRIORITY_CLASSES, "urgent"): {"value": 7},
        (PRIORITY_CLASSES, "pods"): {"value": 5},
        (PRIORITY_CLASSES, "all"): {"value": 3, "globalDefault": True},
    }
    plain, of_pods, labelled = manifest(), asking(manifest(), priorityClassName="pods"), manifest()
    labelled["metadata"]["labels"] = {"kueue.x-k8s.io/priority-class": "urgent"}
    found = [read_priority(_Api(classes), snapshot(job)) for job in (plain, of_pods, labelled)]

    assert [each.value for each in found if isinstance(each, Priority)] == [3, 5, 7]
    assert found[2] == Priority(7, {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "urgent"})
    assert read_priority(_Api({}), snapshot(plain)) == Priority()


def test_a_class_that_is_not_there_is_named() -> None:
    """A job without its priority would wait, or go, before others for no reason."""
    job = asking(manifest(), priorityClassName="pods")

    assert read_priority(_Api({}), snapshot(job)) == "PriorityClass pods is not there"
