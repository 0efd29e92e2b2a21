"""Polls host 0 of every live job for its status: beside the reconciling, in a few threads, bounded in all.

The controller names the jobs to poll, and reads what is published. A change of phase is published at once, and brings
the job's next pass; mere progress shares a budget over all jobs, for each publication is a write to the API server.

A host 0 that does not answer takes a thread for seconds. So those that did not answer the last time have threads of
their own, and a job that waits for its turn does not count as silent: many jobs that cannot be reached make the status
of no other job stale.
"""

import heapq
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from shardwise.protocol.run_status import RunSummary
from shardwise_operator.observe.agents import AgentError, Agents, Target
from shardwise_operator.runtime.pace import Limiter, spread
from shardwise_operator.runtime.queue import Key

_WORKERS = 16
_WORKERS_OF_SILENT = 8
_MAX_POLLS_PER_SECOND = 100.0
MAX_PROGRESS_PER_SECOND = 20.0
_SPREAD = (0.75, 1.25)
# Host 0 may miss this many polls before its last status no longer counts.
_MISSED_POLLS = 4
_STUCK_SECONDS = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Poll:
    """What is published of a job's polls.

    Attributes:
        heard_at: when host 0 last answered, in seconds since the epoch; 0 before it has.
        fresh_seconds: for how long that counts, by the clock as it is set now.
        status: its `/status`; None before it has answered.
        error: why it does not answer; "" if it does.

    """

    heard_at: float
    fresh_seconds: float
    status: RunSummary | None
    error: str = ""

    def fresh(self, now: float) -> bool:
        """Return whether the status still counts."""
        return now - self.heard_at <= self.fresh_seconds


class _Asked:
    """One job that is polled: its UID, whom to ask, the last answer, and the answer that is published."""

    def __init__(self, uid: str, target: Target) -> None:
        self.uid, self.target = uid, target
        self.latest: RunSummary | None = None
        self.published: RunSummary | None = None
        self.published_at = -math.inf  # in monotonic seconds, as the clock may be set at any time
        self.answered_at = -math.inf  # likewise
        self.heard_at = 0.0  # the same in seconds since the epoch, for people; 0 before it
        self.error = ""
        self.said_silent = False
        self.due_at: float | None = None  # while it waits for its turn, in monotonic seconds

    def waits_seconds(self) -> float:
        """Return how long it has waited for its turn, which does not count as silence."""
        return 0.0 if self.due_at is None else max(0.0, time.monotonic() - self.due_at)

    def clock_set_seconds(self) -> float:
        """Return by how much the clock has been set since the last answer."""
        return (time.time() - self.heard_at) - (time.monotonic() - self.answered_at) if self.latest else 0.0


class Poller:
    """The jobs that are polled, and the threads that poll them."""

    def __init__(self, agents: Agents, poll_seconds: float, changed: Callable[[Key], None]) -> None:
        """Poll nothing yet; `changed` is called with each job for which something new is published."""
        self._agents, self._poll_seconds, self._changed = agents, poll_seconds, changed
        self._lock = threading.Condition()
        self._asked: dict[Key, _Asked] = {}
        self._due: list[tuple[float, Key]] = []
        self._rhythm: set[Key] = set()  # keys that are due some time, or being asked: each once
        self._began: dict[Key, float] = {}  # the polls that run
        self._closed = False
        self._progress = Limiter(MAX_PROGRESS_PER_SECOND, int(MAX_PROGRESS_PER_SECOND))
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="poll")
        self._silent_pool = ThreadPoolExecutor(_WORKERS_OF_SILENT, thread_name_prefix="poll silent")
        self._thread = threading.Thread(target=self._run, name="polls", daemon=True)

    def __enter__(self) -> Self:
        """Start every thread that will be needed: one that is refused later would end all polls without a word."""
        for pool, workers in ((self._pool, _WORKERS), (self._silent_pool, _WORKERS_OF_SILENT)):
            together = threading.Barrier(workers + 1)  # a pool has no more threads than have work at once
            try:
                for _ in range(workers):
                    pool.submit(together.wait)
            except RuntimeError:
                together.abort()  # those that have begun would wait for ever, and the process for them
                raise
            together.wait()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify()
        self._thread.join()
        for pool in (self._pool, self._silent_pool):
            pool.shutdown(cancel_futures=True)

    def follow(self, key: Key, uid: str, target: Target) -> None:
        """Poll this job's host 0 from now on; `uid` is the job's."""
        with self._lock:
            asked = self._asked.get(key)
            if asked is None or (asked.uid, asked.target) != (uid, target):
                self._asked[key] = _Asked(uid, target)
            if key not in self._rhythm:
                self._rhythm.add(key)
                self._push(time.monotonic(), key)

    def forget(self, key: Key) -> None:
        """Stop polling it."""
        with self._lock:
            self._asked.pop(key, None)

    def published(self, key: Key, uid: str) -> Poll | None:
        """Return what is published of the job with this UID; None if it is not polled, though an earlier one may be."""
        with self._lock:
            asked = self._asked.get(key)
            if asked is None or asked.uid != uid:
                return None
            return Poll(
                heard_at=asked.heard_at,
                fresh_seconds=self._fresh_seconds() + asked.waits_seconds() + asked.clock_set_seconds(),
                status=asked.published,
                error=asked.error,
            )

    def latest(self) -> dict[str, RunSummary]:
        """Return the last answer of every job that has answered lately, by its UID."""
        with self._lock:
            least = time.monotonic() - self._fresh_seconds()
            asked = self._asked.values()
            return {each.uid: each.latest for each in asked if each.latest and each.answered_at >= least}

    def stuck(self) -> list[str]:
        """Return the jobs whose poll has hung for a minute: no poll may."""
        with self._lock:
            now = time.monotonic()
            return sorted("/".join(key) for key, began in self._began.items() if now - began > _STUCK_SECONDS)

    def _run(self) -> None:
        """Hand out each job when it is due."""
        while True:
            with self._lock:
                while not self._closed and not (self._due and self._due[0][0] <= time.monotonic()):
                    self._lock.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._closed:
                    return
                due_at, key = heapq.heappop(self._due)
                asked = self._asked.get(key)
                if asked:
                    asked.due_at = due_at
            pool = self._silent_pool if asked and asked.error else self._pool
            pool.submit(self._poll, key)

    def _push(self, due_at: float, key: Key) -> None:
        """Let a job be polled at `due_at`; the thread that hands out is woken only if that is the next of all."""
        heapq.heappush(self._due, (due_at, key))
        if self._due[0] == (due_at, key):
            self._lock.notify()

    def _poll(self, key: Key) -> None:
        with self._lock:
            asked = self._asked.get(key)
            if asked is None:
                self._rhythm.discard(key)
                return
            self._began[key], asked.due_at = time.monotonic(), None
        try:
            status, error = self._agents.status(asked.target), ""
        except AgentError as failed:
            status, error = None, str(failed)
        except Exception:  # noqa: BLE001  an error of our own must not end a job's polls; it is logged whole
            _log.exception("%s/%s: the poll failed", *key)
            status, error = None, "the operator could not read the answer"
        with self._lock:
            del self._began[key]
            new = self._take(asked, status, error)
            # Jobs that began together are not polled together for ever.
            pause_seconds = self._period_seconds() * spread(*_SPREAD)
            self._push(time.monotonic() + pause_seconds, key)
        if new:
            self._changed(key)

    def _take(self, asked: _Asked, status: RunSummary | None, error: str) -> bool:
        """Take in an answer; return whether something new is published."""
        now, asked.error = time.monotonic(), error
        if status is None:
            silent = now - asked.answered_at > self._fresh_seconds()
            new, asked.said_silent = silent and not asked.said_silent, silent
            return new
        asked.answered_at, asked.heard_at, asked.latest = now, time.time(), status
        new = asked.said_silent or asked.published is None or _weighty(asked.published) != _weighty(status)
        asked.said_silent = False
        due = asked.published != status and now - asked.published_at >= self._period_seconds(MAX_PROGRESS_PER_SECOND)
        if new or (due and self._progress.taken()):
            asked.published, asked.published_at = status, now
            return True
        return False

    def _period_seconds(self, most_per_second: float = _MAX_POLLS_PER_SECOND) -> float:
        """Return the seconds between two polls of one job, so that all jobs together stay below the limit."""
        return max(self._poll_seconds, len(self._asked) / most_per_second)

    def _fresh_seconds(self) -> float:
        return _MISSED_POLLS * self._period_seconds()


def _weighty(status: RunSummary) -> tuple[object, ...]:
    """Return the part of a status whose change is published at once."""
    return status.phase, status.attempt, status.restarts, status.slowest_host
