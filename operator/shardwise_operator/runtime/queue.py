"""The keys that wait for a pass, and when each is due.

The manager adds keys for changes, the poller for answers, and the workers for later passes. A key is given to one
worker at a time; however often it is added meanwhile, it comes once more after that.
"""

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable

from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.pace import retry_seconds

# The namespace and name of a job.
Key = tuple[str, str]

_FIRST_BACKOFF_SECONDS = 0.5
_MOST_BACKOFF_SECONDS = 120.0


class WorkQueue:
    """Keys that are ready or due later, each at most once of both."""

    def __init__(self, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._changed = threading.Condition()
        self._ready: deque[Key] = deque()
        self._since: dict[Key, float] = {}  # since when a key is ready, or will be as soon as its worker is done
        self._working: set[Key] = set()
        self._due: dict[Key, float] = {}
        self._later: list[tuple[float, Key]] = []  # a heap; an entry that `_due` does not have is out of date
        self._failures: dict[Key, int] = {}
        self._shut = False

    def add(self, key: Key) -> None:
        """Let a worker take the key as soon as one is free."""
        with self._changed:
            self._add(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Add the key in so many seconds; of several times the soonest counts."""
        with self._changed:
            due = self._clock() + seconds
            if due < self._due.get(key, float("inf")):
                self._due[key] = due
                heapq.heappush(self._later, (due, key))
                self._changed.notify()

    def retry(self, key: Key) -> None:
        """Add a key whose pass has failed after its backoff, which doubles until `forget`."""
        with self._changed:
            self._failures[key] = failures = self._failures.get(key, 0) + 1
        self._metrics.retries.inc()
        self.add_after(key, retry_seconds(failures, first=_FIRST_BACKOFF_SECONDS, most=_MOST_BACKOFF_SECONDS))

    def forget(self, key: Key) -> None:
        """Reset the key's backoff after a pass that succeeded."""
        with self._changed:
            self._failures.pop(key, None)

    def get(self) -> Key | None:
        """Wait for the next key and return it; None once the queue is shut. `done` must follow."""
        with self._changed:
            while not self._shut:
                self._promote()
                if self._ready:
                    return self._take()
                self._changed.wait(self._later[0][0] - self._clock() if self._later else None)
            return None

    def done(self, key: Key) -> None:
        """Take the key back from its worker."""
        with self._changed:
            self._working.discard(key)
            if key in self._since:
                self._make_ready(key)

    def shut(self) -> None:
        """Give out no more keys; every waiting worker gets None."""
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
