"""Requests to host 0: beside the passes, one of each job at a time, and believed when host 0 has taken them."""

import queue
import threading
from collections.abc import Iterator

import pytest

from shardwise_operator.decide.plan import Event, RequestSave, RequestStop
from shardwise_operator.observe.agents import AgentError, Agents, Target
from shardwise_operator.write.requests import Requests

KEY = ("default", "job")
TARGET = Target(pod="", address="192.0.2.1", tokens=("secret",))
SAVE = RequestSave("192.0.2.1", {"0-0": "node-a"}, Event("NodeLeaving", "going"))
SECONDS = 300.0  # before a test gives up; nothing is measured with it


class _Slow(Agents):
    """Host 0 that takes what it is asked when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.lets, self.asked = threading.Event(), queue.Queue[str]()
        self.error: Exception | None = None

    def save(self, target: Target) -> None:
        self._take(f"save {target.address}")

    def stop(self, target: Target) -> None:
        self._take(f"stop {target.address}")

    def _take(self, what: str) -> None:
        self.asked.put(what)
        self.lets.wait(SECONDS)
        if self.error:
            raise self.error


@pytest.fixture
def agents() -> Iterator[_Slow]:
    """Return host 0; at the end it lets everybody go."""
    slow = _Slow()
    yield slow
    slow.lets.set()


def test_a_request_holds_up_nobody(agents: _Slow) -> None:
    """It is under way; the job's pass is asked for when host 0 has taken it, and hears so once."""
    changed = queue.Queue[tuple[str, str]]()
    with Requests(agents, changed.put) as requests:
        assert not requests.send(KEY, TARGET, SAVE)
        assert not requests.send(KEY, TARGET, SAVE)
        assert not requests.send(("default", "other"), TARGET, RequestStop("192.0.2.1"))
        assert {agents.asked.get(timeout=SECONDS) for _ in range(2)} == {"save 192.0.2.1", "stop 192.0.2.1"}
        agents.lets.set()
        assert {changed.get(timeout=SECONDS) for _ in range(2)} == {KEY, ("default", "other")}

        assert _heard(requests)
        assert agents.asked.empty()
        assert not requests.send(KEY, TARGET, SAVE)


@pytest.mark.parametrize("error", [AgentError("silence"), RuntimeError("a fault of ours")])
def test_what_nobody_takes_is_asked_again(agents: _Slow, error: Exception) -> None:
    """Whatever went wrong."""
    agents.error = error
    agents.lets.set()
    with Requests(agents, lambda _: None) as requests:
        requests.send(KEY, TARGET, SAVE)
        agents.asked.get(timeout=SECONDS)
        while agents.asked.empty():
            assert not requests.send(KEY, TARGET, SAVE)


def _heard(requests: Requests) -> bool:
    """Whether the request is said to be taken, when the thread that carried it out is through."""
    ends = threading.Event()
    for _ in range(100):
        if requests.send(KEY, TARGET, SAVE):
            return True
        ends.wait(0.02)
    return False
