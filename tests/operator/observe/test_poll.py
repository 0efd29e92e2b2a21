"""The poller: what changes a phase is published at once, progress within its budget, silence once."""

import gc
import queue
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from tests.cluster.commands import wait
from tests.operator.building import UID
from tests.operator.operating import StandInAgents, told

from shardwise.protocol.run_status import RunSummary
from shardwise_operator.observe.agents import AgentError, Target
from shardwise_operator.observe.poll import Poller

KEY = ("default", "job")
TARGET = Target(pod="uid", address="192.0.2.1", tokens=("secret",))
SECONDS = 300.0  # before a test gives up; nothing is measured with it


@pytest.fixture
def agents() -> StandInAgents:
    """Return what answers for host 0."""
    return StandInAgents()


@pytest.fixture
def changed() -> "queue.Queue[tuple[str, str]]":
    """Return what the poller says has changed."""
    return queue.Queue()


@pytest.fixture
def poller(agents: StandInAgents, changed: "queue.Queue[tuple[str, str]]") -> Iterator[Poller]:
    """Return a poller that runs."""
    with Poller(agents, 0.02, changed.put) as running:
        yield running


def _until(holds: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.01)  # a poll, not a wait: the condition decides


def _heard_at(poller: Poller) -> float:
    poll = poller.published(KEY, UID)
    assert poll is not None
    return poll.heard_at


def _step(poller: Poller) -> int | None:
    poll = poller.published(KEY, UID)
    assert poll is not None
    return None if poll.status is None else poll.status.progress.step


def _follow_to_another_step(poller: Poller, agents: StandInAgents, changed: "queue.Queue[object]") -> None:
    """Have the job polled until what host 0 has told second, step 4, is published."""
    agents.answer = told(step=3)
    poller.follow(KEY, UID, TARGET)
    changed.get(timeout=SECONDS)
    agents.answer = told(step=4)
    changed.get(timeout=SECONDS)


def test_an_answer_is_published(poller: Poller, agents: StandInAgents, changed: "queue.Queue[object]") -> None:
    """And the job's next pass is asked for."""
    agents.answer = told(step=3)
    poller.follow(KEY, UID, TARGET)

    assert changed.get(timeout=SECONDS) == KEY
    assert _step(poller) == 3


def test_progress_is_published(poller: Poller, agents: StandInAgents, changed: "queue.Queue[object]") -> None:
    """Every step that host 0 tells reaches the status, or a later one does."""
    _follow_to_another_step(poller, agents, changed)

    assert _step(poller) == 4


def test_the_same_answer_is_no_news(poller: Poller, agents: StandInAgents, changed: "queue.Queue[object]") -> None:
    """A job that stands still costs no write; its word stays fresh."""
    agents.answer = told()
    poller.follow(KEY, UID, TARGET)
    changed.get(timeout=SECONDS)
    first = poller.published(KEY, UID)
    assert first is not None

    heard = {first.heard_at}

    def heard_again() -> bool:
        heard.add(_heard_at(poller))
        return len(heard) > 3

    _until(heard_again)
    assert changed.empty()


def test_silence_is_said_once(poller: Poller, agents: StandInAgents, changed: "queue.Queue[object]") -> None:
    """The job's pass is asked for when the word is stale, with the reason, and again when it speaks."""
    agents.answer = told()
    poller.follow(KEY, UID, TARGET)
    changed.get(timeout=SECONDS)
    agents.answer = None

    changed.get(timeout=SECONDS)
    poll = poller.published(KEY, UID)
    assert poll is not None
    assert poll.error == "192.0.2.1: silence"
    with pytest.raises(queue.Empty):
        changed.get(timeout=0.3)
    agents.answer = told()
    assert changed.get(timeout=SECONDS) == KEY


def test_a_clock_that_is_set_back_stops_nothing(
    poller: Poller, agents: StandInAgents, changed: "queue.Queue[object]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress is still published, an answer counts for as long as before, and silence is said as soon."""
    agents.answer = told(step=3)
    poller.follow(KEY, UID, TARGET)
    changed.get(timeout=SECONDS)

    def set_back() -> float:
        return time.time() - 3600.0

    clock = SimpleNamespace(time=set_back, monotonic=time.monotonic)
    monkeypatch.setattr("shardwise_operator.observe.poll.time", clock)
    agents.answer = None
    assert changed.get(timeout=SECONDS) == KEY
    silent = poller.published(KEY, UID)
    assert silent is not None
    assert not silent.fresh(set_back())

    agents.answer = told(step=4)
    changed.get(timeout=SECONDS)
    agents.answer = told(step=5)
    changed.get(timeout=SECONDS)
    assert _step(poller) == 5
    _until(lambda: _heard_at(poller) <= set_back())


def test_a_poll_that_fails_is_not_the_last(
    poller: Poller, agents: StandInAgents, changed: "queue.Queue[object]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of our own is silence; the job is asked again."""
    monkeypatch.setattr(agents, "status", lambda _: 1 / 0)
    poller.follow(KEY, UID, TARGET)
    changed.get(timeout=SECONDS)
    poll = poller.published(KEY, UID)
    assert poll is not None
    assert poll.error == "the operator could not read the answer"

    monkeypatch.undo()
    agents.answer = told(step=3)
    assert changed.get(timeout=SECONDS) == KEY
    assert _step(poller) == 3


def test_a_poll_that_stands_still_is_told(
    poller: Poller, agents: StandInAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process helps; a poll that is over is not counted."""
    monkeypatch.setattr("shardwise_operator.observe.poll._STUCK_SECONDS", 0.1)
    begun, lets = threading.Event(), threading.Event()

    def stand_still(_: Target) -> RunSummary:
        begun.set()
        lets.wait(SECONDS)
        return told()

    monkeypatch.setattr(agents, "status", stand_still)
    poller.follow(KEY, UID, TARGET)
    begun.wait(SECONDS)
    _until(lambda: poller.stuck() == ["default/job"])

    monkeypatch.undo()
    lets.set()
    _until(lambda: poller.stuck() == [])


def test_many_that_cannot_be_reached_make_nobody_stale(agents: StandInAgents, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take long to fail, on threads of their own; the word of a job that waits for its turn does not age."""

    def status(target: Target) -> RunSummary:
        if target.pod != "well":
            time.sleep(0.4)
            raise AgentError("cannot be reached")
        return told()

    monkeypatch.setattr(agents, "status", status)
    monkeypatch.setattr("shardwise_operator.observe.poll._MAX_POLLS_PER_SECOND", 10_000.0)
    with Poller(agents, 0.5, lambda _: None) as poller:
        poller.follow(KEY, UID, Target(pod="well", address="192.0.2.1", tokens=("secret",)))
        _until(lambda: _heard_at(poller) > 0)
        for number in range(200):
            lost = Target(pod=str(number), address="192.0.2.2", tokens=("secret",))
            poller.follow(("default", f"lost-{number}"), UID, lost)
        stale = 0
        for _ in range(60):
            time.sleep(0.05)
            poll = poller.published(KEY, UID)
            assert poll is not None
            stale += not poll.fresh(time.time())

    assert stale == 0


def test_another_host_0_starts_anew(poller: Poller, agents: StandInAgents, changed: "queue.Queue[object]") -> None:
    """The word of the one before it is not taken for its own."""
    agents.answer = told()
    poller.follow(KEY, UID, TARGET)
    changed.get(timeout=SECONDS)
    agents.answer = None
    poller.follow(KEY, UID, Target(pod="other", address="192.0.2.2", tokens=("secret",)))

    assert _step(poller) is None


def test_a_job_that_is_forgotten_has_no_figures(
    poller: Poller, agents: StandInAgents, changed: "queue.Queue[object]"
) -> None:
    """What host 0 said last goes with the job."""
    agents.answer = told(step=7)
    poller.follow(KEY, UID, TARGET)
    changed.get(timeout=SECONDS)

    # On a busy machine an answer may be too old by the time that it is looked at; another one comes.
    wait("a fresh answer", lambda: [each.progress.step for each in poller.latest().values()] == [7])
    poller.forget(KEY)
    assert poller.published(KEY, UID) is None
    assert poller.latest() == {}


def test_a_job_of_the_same_name_has_no_figures_of_the_one_before(
    poller: Poller, agents: StandInAgents, changed: "queue.Queue[object]"
) -> None:
    """Where no pass came between the two, what host 0 of the earlier one said is still kept."""
    agents.answer = told(step=7)
    poller.follow(KEY, UID, TARGET)
    changed.get(timeout=SECONDS)

    assert poller.published(KEY, "uid of the next") is None
    poller.follow(KEY, "uid of the next", TARGET)
    assert poller.published(KEY, UID) is None


def test_polls_go_on_where_no_thread_can_be_started(
    poller: Poller, agents: StandInAgents, changed: "queue.Queue[object]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container at its limit of processes refuses new threads: those that poll are there from the start."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    _follow_to_another_step(poller, agents, changed)

    assert _step(poller) == 4


def test_an_operator_that_gets_too_few_threads_ends(agents: StandInAgents, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an error, not by waiting for those that it has: it is started again."""
    start, before, left = threading.Thread.start, threading.active_count(), [5]

    def few(thread: threading.Thread) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    with pytest.raises(RuntimeError, match="can't start"), Poller(agents, 0.02, lambda _: None):
        pass
    gc.collect()  # a pool's threads end with it

    _until(lambda: threading.active_count() <= before)
