"""Trackers in the background: a service that is slow, away or broken costs a run nothing but its numbers there."""

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from shardwise.protocol.errors import UsageError
from shardwise.train import background
from shardwise.train.background import Background, Point, Service


class Recorded:
    """A service that keeps what it is sent, once it is `up`, and hangs while `held` is set."""

    def __init__(self, *, up: bool = True) -> None:
        self.up, self.held = threading.Event(), threading.Event()
        self.free = threading.Event()
        self.tries = 0
        self.steps: list[int] = []
        self.complete: bool | None = None
        if up:
            self.up.set()

    def send(self, points: Sequence[Point]) -> None:
        """Keep the steps."""
        self.tries += 1
        if self.held.is_set():
            self.free.wait()
        if not self.up.is_set():
            raise ConnectionError("nobody is\nthere")
        self.steps += [point.step for point in points]

    def close(self, *, complete: bool) -> None:
        """Keep how the run ended."""
        self.complete = complete


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once, and wait for no service longer than a moment."""
    monkeypatch.setattr(background, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(background, "_FIRST_PAUSE_SECONDS", 0.001)


def ready(service: Service) -> Callable[[], Service]:
    """Return what begins with a service that is there already."""
    return lambda: service


def test_all_steps_arrive_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a run waits for what is not sent yet, and tells the service how the run ended."""
    monkeypatch.setattr(background, "ANSWER_SECONDS", 60.0)
    said: list[str] = []
    service = Recorded()
    tracker = Background("Service", ready(service), said.append)

    for step in range(1, 1001):
        tracker.step(step, {"loss": 1.0})
    tracker.close(complete=True)

    assert service.steps == list(range(1, 1001))
    assert service.complete is True
    assert said == []


def test_a_service_that_comes_back_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again until it answers; it is said once, in one line, that it was away."""
    monkeypatch.setattr(background, "ANSWER_SECONDS", 60.0)
    said: list[str] = []
    service = Recorded(up=False)
    tracker = Background("Service", ready(service), said.append)
    tracker.step(1, {"loss": 1.0})
    while service.tries < 5:
        time.sleep(0.001)
    tracker.step(2, {"loss": 1.0})
    service.up.set()
    tracker.close(complete=False)

    assert service.steps == [1, 2]
    assert service.complete is False
    (words,) = said
    assert words.startswith("Service does not take the numbers (nobody is")
    assert "\n" not in words


def test_a_service_that_hangs_holds_up_neither_steps_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step never waits, what waits is bounded, and the end waits a bounded time and says how much is missing."""
    monkeypatch.setattr(background, "MOST_WAITING", 10)
    monkeypatch.setattr(background, "ANSWER_SECONDS", 60.0)
    said: list[str] = []
    service = Recorded()
    service.held.set()
    tracker = Background("Service", ready(service), said.append)
    began = time.monotonic()
    for step in range(1, 31):
        tracker.step(step, {"loss": 1.0})
    assert time.monotonic() - began < 60  # the first that waited, however long it may, would take more alone
    monkeypatch.setattr(background, "ANSWER_SECONDS", 0.2)
    tracker.close(complete=True)
    assert not service.free.is_set()  # whoever waits for the service itself never comes here
    service.free.set()

    assert said == ["Service lacks 30 records of this start; metrics.jsonl has them"]


def test_the_oldest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no more may wait the newest stay, since the curve's end is what people look at."""
    monkeypatch.setattr(background, "MOST_WAITING", 3)
    said: list[str] = []
    began, service = threading.Event(), Recorded()

    def begin() -> Service:
        began.wait()
        return service

    monkeypatch.setattr(background, "ANSWER_SECONDS", 0.01)
    tracker = Background("Service", begin, said.append)
    for step in range(1, 6):
        tracker.step(step, {"loss": 1.0})
    monkeypatch.setattr(background, "ANSWER_SECONDS", 60.0)
    began.set()
    tracker.close(complete=True)

    assert service.steps == [3, 4, 5]
    assert said[0].startswith("Service does not take the numbers (no answer within")
    assert said[1:] == ["Service lacks 2 records of this start; metrics.jsonl has them"]


def test_a_refusal_ends_the_start() -> None:
    """Nobody would see the numbers: the run ends before it trains."""

    def refuse() -> Service:
        raise UsageError("you may not")

    with pytest.raises(UsageError, match="you may not"):
        Background("Service", refuse, pytest.fail)


def test_a_refusal_that_comes_late_ends_nothing() -> None:
    """Training has begun by then: it is said, and what comes after that does not wait in memory."""
    said: list[str] = []
    answers = threading.Event()

    def refuse() -> Service:
        answers.wait()
        raise UsageError("you may not")

    tracker = Background("Service", refuse, said.append)
    tracker.step(1, {"loss": 1.0})
    answers.set()
    tracker.close(complete=True)
    tracker.step(2, {"loss": 1.0})
    tracker.close(complete=True)

    assert "no answer within" in said[0]
    assert said[1:] == [
        "you may not",
        "Service lacks 1 records of this start; metrics.jsonl has them",
        "Service lacks 2 records of this start; metrics.jsonl has them",
    ]


def test_no_password_of_an_address_is_said() -> None:
    """A library names the address that it could not reach, and a name and a password may be in it."""
    said: list[str] = []

    def down() -> Service:
        raise ConnectionError("https://me:hunter2@tracker/api: refused; //me:hunter2@tracker too")

    tracker = Background("Service", down, said.append)
    tracker.step(1, {"loss": 1.0})
    tracker.close(complete=True)
    assert "(https://tracker/api: refused; //tracker too)" in said[0]
    assert not any("hunter2" in line for line in said)
