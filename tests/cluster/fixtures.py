"""Fixtures for tests against a real Kubernetes: an API server by itself, and a cluster that runs containers.

A pytest plugin that `tests/conftest.py` names. A test says which it needs by its arguments:

    def test_x(api_server: ApiServer, namespace: str)      # never skipped; 3 seconds per process of pytest
    def test_y(cluster: Cluster, cluster_namespace: str)   # skipped where this machine cannot run nodes

What was skipped for want of nodes is said in the last lines of the run.
"""

import fcntl
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster import lifecycle, nodes, volume
from tests.cluster.api_server import ApiServer
from tests.cluster.client import Client
from tests.cluster.commands import run, wait
from tests.cluster.control_plane import client
from tests.cluster.places import CACHE, KUBECONFIG, RUN
from tests.cluster.programs import locked, nobody_else, programs

_SKIPPED = "no nodes on this machine: "
_OURS = RUN / "up-for-tests"  # goes with the cluster
_ROOT = Path(__file__).parents[2]


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


class Cluster:
    """The cluster of this machine: real nodes, shared by all tests of the run."""

    kubeconfig = KUBECONFIG

    def __init__(self) -> None:
        """It is up."""
        self.client = client()
        self.programs = programs()

    @property
    def nodes(self) -> list[str]:
        """The nodes that run."""
        return nodes.running_nodes()

    def load(self, target: str) -> str:
        """Give the image of a target of `images.build` to every node, built first where it is not; its name."""
        with locked("image-builds"):
            image = run(sys.executable, "-m", "images.build", target, folder=_ROOT).splitlines()[-1]
            self.load_image(image)
        return image

    def load_image(self, image: str) -> None:
        """Give an image of buildah's store to every node."""
        _verb("load", image)

    def kill_node(self, name: str) -> None:
        """Take a node's power; `start_node` before the test ends."""
        _verb("kill-node", name.removeprefix("node"))

    def start_node(self, name: str) -> None:
        """Boot a node that was killed, and wait until it is ready."""
        _verb("start-node", name.removeprefix("node"))


@pytest.fixture(scope="session")
def _running_cluster() -> Iterator[Cluster]:
    """Use the cluster that is up, and leave it up; else start one, and the last of pytest's processes ends it."""
    if reason := lifecycle.impossible():
        pytest.skip(_SKIPPED + reason)
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".users.lock").open("w") as users:
        with locked("cluster"):
            if not lifecycle.is_up():
                _verb("up")
                _OURS.touch()
            fcntl.flock(users, fcntl.LOCK_SH)
        yield Cluster()
        with locked("cluster"):
            fcntl.flock(users, fcntl.LOCK_UN)
            if _OURS.exists() and nobody_else(users.fileno()):
                _verb("down")


@pytest.fixture
def cluster(_running_cluster: Cluster) -> Iterator[Cluster]:
    """Return the cluster of three nodes; other tests may use it too, in namespaces of their own."""
    with _exclusion(fcntl.LOCK_SH):
        yield _running_cluster


@pytest.fixture
def whole_cluster(_running_cluster: Cluster) -> Iterator[Cluster]:
    """Return the cluster for a test that nobody may meet: it kills nodes, or installs what there is one of."""
    with _exclusion(fcntl.LOCK_EX):
        yield _running_cluster


@pytest.fixture
def cluster_namespace(_running_cluster: Cluster) -> Iterator[str]:
    """Return a new namespace of the cluster."""
    with _namespace(_running_cluster.client) as name:
        yield name


@pytest.fixture
def runs_volume(cluster_namespace: str) -> Iterator[Path]:
    """Return the folder behind the claim `runs` of the namespace: what pods of every node write there, it holds."""
    yield volume.make(cluster_namespace)
    volume.remove(cluster_namespace)


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


def _verb(*words: str) -> None:
    """Run the command line: what it starts outlives this process, and its progress does not mix with pytest's."""
    run(sys.executable, "-m", "tests.cluster", *words, folder=_ROOT)


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
