"""Which keys wait for a reconcile pass, and when.

Filled by the manager (changes), the poller and the workers themselves (later, again); emptied by the workers. A key is
handed to one worker at a time; however often it is added meanwhile, it comes once more after that.
"""

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable

from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.pace import backoff_seconds

# The namespace and name of a job.
Key = tuple[str, str]

_FIRST_BACKOFF_SECONDS = 0.5
_MOST_BACKOFF_SECONDS = 120.0


class WorkQueue:
    """Keys, each at most once ready and once later."""

    def __init__(self, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._changed = threading.Condition()
        self._ready: deque[Key] = deque()
        self._since: dict[Key, float] = {}  # ready, or to be ready when its worker is done: since when
        self._working: set[Key] = set()
        self._due: dict[Key, float] = {}
        self._later: list[tuple[float, Key]] = []  # a heap; what `_due` does not confirm is out of date
        self._failures: dict[Key, int] = {}
        self._shut = False

    def add(self, key: Key) -> None:
        """Let a worker take the key as soon as one is free."""
        with self._changed:
            self._add(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """The same in a while; of several whiles the soonest counts."""
        with self._changed:
            due = self._clock() + seconds
            if due < self._due.get(key, float("inf")):
                self._due[key] = due
                heapq.heappush(self._later, (due, key))
                self._changed.notify()

    def retry(self, key: Key) -> None:
        """Let the key, whose pass failed, come again after its backoff, which doubles until `forget`."""
        with self._changed:
            self._failures[key] = failures = self._failures.get(key, 0) + 1
        self._metrics.retries.inc()
        self.add_after(key, backoff_seconds(failures, first=_FIRST_BACKOFF_SECONDS, most=_MOST_BACKOFF_SECONDS))

    def forget(self, key: Key) -> None:
        """The key's pass went well: its next failure is its first."""
        with self._changed:
            self._failures.pop(key, None)

    def get(self) -> Key | None:
        """The next key, waiting for one; None once the queue is shut. `done` must follow."""
        with self._changed:
            while not self._shut:
                self._promote()
                if self._ready:
                    return self._take()
                self._changed.wait(self._later[0][0] - self._clock() if self._later else None)
            return None

    def done(self, key: Key) -> None:
        """The worker has finished with the key."""
        with self._changed:
            self._working.discard(key)
            if key in self._since:
                self._make_ready(key)

    def shut(self) -> None:
        """Hand out no more keys; who waits gets None."""
        with self._changed:
            self._shut = True
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._ready)

    def _promote(self) -> None:
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            due, key = heapq.heappop(self._later)
            if self._due.get(key) == due:
                del self._due[key]
                self._add(key)

    def _add(self, key: Key) -> None:
        if key in self._since:
            return
        self._since[key] = self._clock()
        self._metrics.adds.inc()
        if key not in self._working:
            self._make_ready(key)

    def _make_ready(self, key: Key) -> None:
        self._ready.append(key)
        self._metrics.depth.set(len(self._ready))
        self._changed.notify()

    def _take(self) -> Key:
        key = self._ready.popleft()
        self._working.add(key)
        self._metrics.depth.set(len(self._ready))
        self._metrics.queued.observe(self._clock() - self._since.pop(key))
        return key
