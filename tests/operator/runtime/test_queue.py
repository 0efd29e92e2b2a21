"""The queue of keys."""

import threading
from collections import Counter

import pytest

from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.queue import Key, WorkQueue

ONE, TWO = ("ns", "one"), ("ns", "two")


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        """Read it."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Return a clock at 100 s."""
    return Clock()


@pytest.fixture
def queue(metrics: Metrics, clock: Clock) -> WorkQueue:
    """Return an empty queue."""
    return WorkQueue(metrics, clock=clock)


def test_a_key_waits_once(queue: WorkQueue) -> None:
    """However often a key is added before a worker takes it, it is one pass."""
    for key in (ONE, TWO, ONE, ONE):
        queue.add(key)

    assert len(queue) == 2
    assert [queue.get(), queue.get()] == [ONE, TWO]


def test_a_key_added_during_its_pass_comes_once_more(queue: WorkQueue) -> None:
    """What changed during a pass may have been missed by it; and no second worker may have the key meanwhile."""
    queue.add(ONE)
    queue.get()
    queue.add(ONE)
    queue.add(ONE)

    assert len(queue) == 0
    queue.done(ONE)
    assert queue.get() == ONE
    queue.done(ONE)
    assert len(queue) == 0


def test_the_soonest_of_several_whiles_counts(queue: WorkQueue, clock: Clock) -> None:
    """A key that is to come in 5 s and in 60 s comes in 5 s, once."""
    queue.add_after(ONE, 60)
    queue.add_after(ONE, 5)
    queue.add_after(ONE, 30)
    queue.add_after(TWO, 10)

    clock.now += 5
    assert queue.get() == ONE
    clock.now += 100
    assert queue.get() == TWO
    assert len(queue) == 0


def test_failures_come_back_later_each_time(queue: WorkQueue, clock: Clock) -> None:
    """Each failure at least waits half of a doubled time, up to two minutes; a success begins anew."""
    waits = []
    for _ in range(12):
        began = clock.now
        queue.retry(ONE)
        while not len(queue):
            clock.now += 0.05
            with queue._changed:
                queue._promote()
        queue.done(queue.get() or ONE)
        waits.append(clock.now - began)

    assert 0.25 <= waits[0] <= 0.56
    assert 2.0 <= waits[3] <= 4.06
    assert 60 <= waits[11] <= 120.06
    queue.forget(ONE)
    queue.retry(ONE)
    clock.now += 0.5
    assert queue.get() == ONE


def test_who_waits_gets_what_comes(metrics: Metrics) -> None:
    """A worker that waits on an empty queue is woken by a key that comes at once, and by one that comes later."""
    queue = WorkQueue(metrics)
    got: list[Key | None] = []
    worker = threading.Thread(target=lambda: got.extend((queue.get(), queue.get(), queue.get())))
    worker.start()

    queue.add_after(TWO, 1.0)
    queue.add(ONE)
    while len(got) + len(queue._working) < 2:
        threading.Event().wait(0.01)
    queue.shut()
    worker.join()

    assert got == [ONE, TWO, None]


def test_many_threads_never_share_a_key(metrics: Metrics) -> None:
    """With eight workers and keys added all the time, no key is in two hands, and the last word on each is heard."""
    queue = WorkQueue(metrics)
    keys = [("ns", str(n)) for n in range(5)]
    said, heard, in_hand, shared = Counter[Key](), Counter[Key](), Counter[Key](), []
    lock = threading.Lock()

    def work() -> None:
        while (key := queue.get()) is not None:
            with lock:
                in_hand[key] += 1
                if in_hand[key] > 1:
                    shared.append(key)
            latest = said[key]
            with lock:
                heard[key] = latest
                in_hand[key] -= 1
            queue.done(key)

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for _ in range(2000):
        for key in keys:
            said[key] += 1
            queue.add(key)
    while heard != said:
        threading.Event().wait(0.01)
    queue.shut()
    for worker in workers:
        worker.join()

    assert shared == []
    assert len(queue) == 0


def test_the_depth_is_counted(queue: WorkQueue, metrics: Metrics) -> None:
    """The metrics say how many keys wait, and how many came."""
    queue.add(ONE)
    queue.add(TWO)
    queue.add(TWO)
    queue.get()

    assert metrics.registry.get_sample_value("workqueue_depth") == 1
    assert metrics.registry.get_sample_value("workqueue_adds_total") == 2
    assert metrics.registry.get_sample_value("workqueue_queue_duration_seconds_count") == 1
