"""The CRDs, a class, and a namespace in which an operator runs."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.cluster.api_server import ApiServer
from tests.cluster.commands import wait
from tests.operator.operating import Operator, Place, StandInAgents

_ROOT = Path(__file__).parents[2]
_CRDS = _ROOT / "charts" / "shardwise" / "crds"
_CLASSES = _ROOT / "trainer" / "shardwise" / "job" / "classes"


@pytest.fixture(scope="session")
def _api(api_server: ApiServer) -> ApiServer:
    """Return the API server with the CRDs and the classes."""
    api_server.client.kubectl("apply", "--server-side", "--filename", _CRDS)
    for plural in ("trainingjobs", "acceleratorclasses", "acceleratorcatalogs"):
        wait(plural, partial(api_server.client.answers, f"/apis/shardwise.dev/v1alpha1/{plural}"))
    api_server.client.kubectl("apply", "--server-side", "--filename", _CLASSES)
    return api_server


@pytest.fixture
def place(_api: ApiServer, namespace: str) -> Place:
    """Return a namespace of its own."""
    return Place(_api.client, namespace)


@pytest.fixture
def agents() -> StandInAgents:
    """Return what answers for host 0."""
    return StandInAgents()


@pytest.fixture
def operator(_api: ApiServer, namespace: str, agents: StandInAgents) -> Iterator[Operator]:
    """Return an operator that looks after the namespace."""
    with Operator(_api.kubeconfig, namespace, agents) as running:
        yield running
