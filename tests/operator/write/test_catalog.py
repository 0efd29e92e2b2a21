"""The catalogue says what the classes say, whoever else has written or deleted it: admission believes it."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.operator.building import classes

from shardwise_operator.api.catalog import catalog_of
from shardwise_operator.runtime.kinds import ACCELERATOR_CATALOGS, ACCELERATOR_CLASSES, Kind, Object
from shardwise_operator.write.catalog import Catalog

WANTED = catalog_of(classes().values())


class _Cluster:
    """A cluster with the built-in classes and this catalogue; keeps what is written."""

    def __init__(self, found: Object | None) -> None:
        self._found = found
        self.written: list[tuple[str, Object]] = []

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        assert (kind, namespace, name) == (ACCELERATOR_CATALOGS, "", "shardwise")
        return self._found

    def list(self, kind: Kind) -> Sequence[Any]:
        return list(classes().values()) if kind == ACCELERATOR_CLASSES else []

    def create(self, _kind: Kind, obj: Object) -> None:
        self.written.append(("create", obj))

    def replace(self, _kind: Kind, obj: Object) -> None:
        self.written.append(("replace", obj))

    def reconcile(self) -> None:
        """Watch no node."""


def _written(found: Object | None) -> list[tuple[str, Object]]:
    cluster: Any = _Cluster(found)  # of the cache, of the API and of the nodes the part that is used
    Catalog(cluster, cluster, cluster).reconcile()
    return list(cluster.written)


def _found(entries: list[Object]) -> Object:
    return {"metadata": {"name": "shardwise", "resourceVersion": "7"}, "spec": {"classes": entries}}


def test_one_that_was_deleted_is_made_again() -> None:
    """Without it admission lets every job through."""
    assert _written(None) == [("create", WANTED)]


@pytest.mark.parametrize("entries", [[], [*WANTED["spec"]["classes"], {"name": "mine", "kernels": ["plain"]}]])
def test_one_that_was_edited_is_replaced(entries: list[Object]) -> None:
    """As a whole, what somebody added too; but not one that has changed since it was looked at."""
    ((how, obj),) = _written(_found(entries))

    assert how == "replace"
    assert obj["spec"] == WANTED["spec"]
    assert obj["metadata"]["resourceVersion"] == "7"


def test_one_that_is_right_is_left() -> None:
    """Its own write brings the operator back to it."""
    assert _written(_found(WANTED["spec"]["classes"])) == []
