"""A namespace of a real API server in which an operator runs, and a client of it."""

import pytest
from tests.cluster.api_server import ApiServer
from tests.operator.conftest import _api, agents, operator, place  # noqa: F401  fixtures

from shardwise.client import Cluster


@pytest.fixture
def cluster_client(_api: ApiServer, namespace: str) -> Cluster:  # noqa: F811  the fixture
    """Return the client of the namespace."""
    return Cluster(namespace=namespace, kubeconfig=_api.kubeconfig)
