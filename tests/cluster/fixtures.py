"""Fixtures for tests against a real Kubernetes: an API server by itself, and a cluster that runs containers.

A pytest plugin that `tests/conftest.py` names. A test says which it needs by its arguments:

    def test_x(api_server: ApiServer, namespace: str)      # never skipped; 3 seconds per process of pytest
    def test_y(cluster: Cluster, cluster_namespace: str)   # skipped where this machine cannot run nodes

The cluster is the bare one, or with KIND=1 in the environment kind; `make` says it where Docker answers. What was
skipped for want of nodes is said in the last lines of the run.
"""

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster import lifecycle
from tests.cluster.api_server import ApiServer
from tests.cluster.bare import Bare
from tests.cluster.client import Client
from tests.cluster.cluster import Cluster
from tests.cluster.commands import wait
from tests.cluster.kind.cluster import Kind
from tests.cluster.places import CACHE
from tests.cluster.programs import locked, nobody_else

_SKIPPED = "no nodes on this machine: "


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """Return an API server of this process of pytest; tests keep apart by namespaces."""
    with ApiServer() as server:
        yield server


@pytest.fixture
def namespace(api_server: ApiServer) -> Iterator[str]:
    """Return a new namespace of the API server."""
    with _namespace(api_server.client) as name:
        yield name


@pytest.fixture(scope="session")
def _running_cluster() -> Iterator[Cluster]:
    """Use the cluster that is up, and leave it up; else start one, and the last of pytest's processes ends it."""
    made = _chosen()
    if isinstance(made, Bare) and (reason := lifecycle.impossible()):
        pytest.skip(_SKIPPED + reason)
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f".{made.name}.users.lock").open("w") as users:
        with locked("cluster"):
            if not made.is_up:
                made.up()
                made.up_for_tests.touch()
            fcntl.flock(users, fcntl.LOCK_SH)
        yield made
        with locked("cluster"):
            fcntl.flock(users, fcntl.LOCK_UN)
            if made.up_for_tests.exists() and nobody_else(users.fileno()):
                made.down()


@pytest.fixture
def cluster(_running_cluster: Cluster) -> Iterator[Cluster]:
    """Return the cluster; other tests may use it too, in namespaces of their own."""
    with _exclusion(fcntl.LOCK_SH):
        yield _running_cluster


@pytest.fixture
def whole_cluster(_running_cluster: Cluster) -> Iterator[Cluster]:
    """Return the cluster for a test that nobody may meet: it kills nodes, or installs what there is one of."""
    with _exclusion(fcntl.LOCK_EX):
        yield _running_cluster


@pytest.fixture
def bare(_running_cluster: Cluster) -> Bare:
    """Return the bare cluster, to a test of what it is."""
    if not isinstance(_running_cluster, Bare):
        pytest.skip("this is about the bare cluster, and KIND=1 asks for kind")
    return _running_cluster


@pytest.fixture
def kind(_running_cluster: Cluster) -> Kind:
    """Return the kind cluster, to a test of what only it can do."""
    if not isinstance(_running_cluster, Kind):
        pytest.skip("this needs kind: make test-kind")
    return _running_cluster


@pytest.fixture
def cluster_namespace(_running_cluster: Cluster) -> Iterator[str]:
    """Return a new namespace of the cluster."""
    with _namespace(_running_cluster.client) as name:
        yield name


@pytest.fixture
def runs_volume(_running_cluster: Cluster, cluster_namespace: str) -> Iterator[Path]:
    """Return the folder behind the claim `runs` of the namespace: what pods of every node write there, it holds."""
    yield _running_cluster.make_volume(cluster_namespace)
    _running_cluster.remove_volumes(cluster_namespace)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped because this machine cannot run nodes."""
    texts = [
        str(report.longrepr) for report in terminalreporter.stats.get("skipped", ()) if _SKIPPED in str(report.longrepr)
    ]
    if texts:
        reason = texts[0].split(_SKIPPED)[1].rstrip("')")
        terminalreporter.write_line(
            f"NOT RUN: {len(texts)} tests that need nodes with containers: {reason}.", yellow=True
        )


# ------------------------------------------------------------------------------------------------------------- helpers


def _chosen() -> Cluster:
    return Kind() if os.environ.get("KIND") == "1" else Bare()


@contextmanager
def _exclusion(operation: int) -> Iterator[None]:
    with (CACHE / ".exclusion.lock").open("w") as file:
        fcntl.flock(file, operation)
        yield


@contextmanager
def _namespace(api: Client) -> Iterator[str]:
    """A namespace that is ready for pods; afterwards its deletion is asked for, not waited for."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait(f"the service account of namespace {name}", lambda: api.answers(account))
    yield name
    api.request("DELETE", f"/api/v1/namespaces/{name}")
