"""Which CRD of a cluster an upgrade's hook leaves as it is; tests/charts/test_life.py lets it meet a real one."""

import json
from pathlib import Path

import pytest

from shardwise_operator.hooks import install_crds
from shardwise_operator.runtime.errors import NotFoundError
from shardwise_operator.runtime.kinds import CRDS, Kind, Object
from shardwise_operator.runtime.transport import Api

NAME = "things.example.com"


def crd(*fields: str, modes: tuple[str, ...] = ("a",)) -> Object:
    """A CRD whose list `spec.of` has items with these fields, and whose `spec.mode` is one of `modes`."""
    items = {"type": "object", "properties": {field: {"type": "string"} for field in fields}}
    spec = {"of": {"type": "array", "items": items}, "mode": {"type": "string", "enum": list(modes)}}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}
    version = {"name": "v1", "schema": {"openAPIV3Schema": schema}}
    return {"metadata": {"name": NAME}, "spec": {"versions": [version]}}


class Cluster(Api):
    """A cluster with one CRD or none, which it serves at once."""

    def __init__(self, installed: Object | None) -> None:
        """Hold what is installed."""
        self.installed = installed

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Return it."""
        assert (kind, namespace, name) == (CRDS, "", NAME)
        if self.installed is None:
            raise NotFoundError(404, "NotFound", NAME)
        return self.installed | {"status": {"conditions": [{"type": "Established", "status": "True"}]}}

    def apply(self, kind: Kind, obj: Object, *, force: bool = True) -> Object:
        """Install it."""
        assert (kind, force) == (CRDS, True)
        self.installed = obj
        return obj


@pytest.mark.parametrize(
    ("installed", "brought", "only_installed"),
    [
        (None, crd("x"), []),
        (crd("x"), crd("x"), []),
        (crd("x"), crd("x", "y"), []),
        (crd("x", "y"), crd("x"), ["v1.spec.of.*.y"]),
        (crd("x", modes=("a", "b")), crd("x"), ["v1.spec.mode=b"]),
        (crd("x", "y"), crd("x", "z"), []),
    ],
    ids=["none", "same", "gained a field", "newer by a field", "newer by a value", "each has its own"],
)
def test_a_newer_crd_stays(
    tmp_path: Path, installed: Object | None, brought: Object, only_installed: list[str]
) -> None:
    """One that knows all that the chart's does and more is not replaced, and the hook names what it has more."""
    (tmp_path / "things.json").write_text(json.dumps(brought), encoding="utf-8")
    cluster = Cluster(installed)

    assert install_crds(cluster, tmp_path) == {NAME: only_installed}
    assert cluster.installed == (installed if only_installed else brought)
