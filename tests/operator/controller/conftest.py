"""A real Kueue beside the API server, and an operator that knows of it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.cluster import kueue
from tests.cluster.api_server import ApiServer
from tests.operator.operating import Operator, Place
from tests.operator.queues import ManyAgents, Queues


@pytest.fixture(scope="session")
def _kueue(_api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Have Kueue look after the API server; it is there for all tests from the first one that asks for it."""
    with kueue.operating(_api.client, tmp_path_factory.mktemp("kueue")):
        yield _api


@pytest.fixture
def many_agents() -> ManyAgents:
    """Return what answers for the host 0 of each job."""
    return ManyAgents()


@pytest.fixture
def queueing_operator(place: Place, _kueue: ApiServer, many_agents: ManyAgents) -> Iterator[Operator]:
    """Return an operator of the namespace that knows of Kueue."""
    with Operator(_kueue.kubeconfig, place.namespace, many_agents, kueue=True, kueue_priority_boost=True) as running:
        yield running


@pytest.fixture
def queues(
    place: Place,
    queueing_operator: Operator,  # noqa: ARG001  it is there as long as the queues are
) -> Iterator[Callable[..., Queues]]:
    """Return a function that makes queues of the namespace, whose operator knows of Kueue."""
    made: list[Queues] = []

    def making(cpus: int, **fields: Any) -> Queues:
        made.append(Queues(place, cpus, **fields))
        return made[-1]

    yield making
    for each in made:
        each.remove()
