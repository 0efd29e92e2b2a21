"""The runtime's parts as a test builds them, against a real API server or a scripted one."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cluster.api_server import ApiServer
from tests.operator.runtime.scripted_server import ScriptedServer

from shardwise_operator.runtime.connection import connect
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.pace import Limiter
from shardwise_operator.runtime.transport import Api

LIMIT_SECONDS = 300.0  # before a test gives up; nothing is measured with it

Eventually = Callable[[Callable[[], object]], None]


@pytest.fixture
def eventually() -> Eventually:
    """Return a function that waits until its condition holds."""

    def wait(condition: Callable[[], object]) -> None:
        ends_at = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert time.monotonic() < ends_at, "it did not come to that"
            time.sleep(0.02)

    return wait


@pytest.fixture
def metrics() -> Metrics:
    """Return metrics of their own."""
    return Metrics()


@pytest.fixture
def api(api_server: ApiServer, metrics: Metrics) -> Api:
    """Return a way to the real API server, as its administrator."""
    return Api(connect(str(api_server.kubeconfig)), metrics, limiter=Limiter(500, 500))


@pytest.fixture
def script() -> Iterator[ScriptedServer]:
    """Return a scripted server."""
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def scripted_api(script: ScriptedServer, metrics: Metrics, tmp_path: Path) -> Api:
    """Return a way to the scripted server."""
    return Api(connect(script.kubeconfig(tmp_path)), metrics, limiter=Limiter(500, 500), read_seconds=2)
