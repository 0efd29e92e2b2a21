"""The CRDs, a class, and a namespace in which an operator runs."""

from collections.abc import Iterator

import pytest
from tests.cluster.api_server import ApiServer
from tests.operator.installing import install_types
from tests.operator.operating import Operator, Place, StandInAgents


@pytest.fixture(scope="session")
def _api(api_server: ApiServer) -> ApiServer:
    """Return the API server with the CRDs and the classes."""
    install_types(api_server.client)
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
