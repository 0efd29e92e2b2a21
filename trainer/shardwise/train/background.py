"""Trackers in threads of their own: a service that is slow, or gone, neither slows a run nor ends it.

What a service does not take is kept for another try, within a bound. metrics.jsonl has every number in any case.
"""

import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from shardwise.protocol.errors import UsageError
from shardwise.protocol.storage import first_line

ANSWER_SECONDS = 20.0
"""How long a start, and an end, waits for a service that does not respond."""
MOST_WAITING = 20_000
"""Points that wait at most. Beyond that the oldest are dropped."""
_MOST_AT_ONCE = 100
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0

_Result = TypeVar("_Result")


class Point(NamedTuple):
    """Numbers of one step, and when they came, in seconds since the epoch."""

    step: int
    values: Mapping[str, float]
    at: float


class Service(Protocol):
    """What sends numbers somewhere. After an exception it is not known what has arrived."""

    def send(self, points: Sequence[Point]) -> None:
        """Send some points, in order; the points of a call that failed come again in the next one."""

    def close(self, *, complete: bool) -> None:
        """Send what is buffered; `complete` says whether the run took its last step."""


class _GivenUpError(Exception):
    """The run ends, and the service does not answer."""


class Background:
    """A tracker whose service is called by a thread of its own."""

    def __init__(self, name: str, begin: Callable[[], Service], show: Callable[[str], None]) -> None:
        """Call `begin` in the thread and wait for it, but not for long; `show` takes warnings, with the name.

        Raises:
            UsageError: `begin` raised it: the service refuses.

        """
        self._name, self._begin, self._show = name, begin, show
        self._changed = threading.Condition()
        self._waiting: deque[Point] = deque()
        self._num_sending = self._num_dropped = 0
        self._begun, self._closing, self._done = threading.Event(), threading.Event(), threading.Event()
        self._refused: UsageError | None = None
        self._warned = self._complete = False
        self._gives_up_at = math.inf
        threading.Thread(target=self._run, name=f"tracker {name}", daemon=True).start()
        if not self._begun.wait(ANSWER_SECONDS):
            self._warn(f"no answer within {ANSWER_SECONDS:.0f} s")
        elif self._refused:
            raise self._refused

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Take one step's numbers, without waiting for anything."""
        with self._changed:
            if len(self._waiting) == MOST_WAITING or self._done.is_set():
                self._num_dropped += 1
                if self._done.is_set():
                    return
                self._waiting.popleft()
            self._waiting.append(Point(step, values, time.time()))
            self._changed.notify()

    def close(self, *, complete: bool) -> None:
        """Have the service send what waits, within a bounded time; say what it lacks then."""
        self._complete, self._gives_up_at = complete, time.monotonic() + ANSWER_SECONDS
        with self._changed:
            self._closing.set()
            self._changed.notify()
        self._done.wait(ANSWER_SECONDS)
        with self._changed:
            num_lacking = self._num_dropped + self._num_sending + len(self._waiting)
        if num_lacking:
            self._show(f"{self._name} lacks {num_lacking} records of this start; metrics.jsonl has them")

    def _run(self) -> None:
        try:
            service = self._until_it_works(self._begin)
            self._begun.set()
            while points := self._next():
                self._until_it_works(partial(service.send, points))
                self._num_sending = 0
            self._until_it_works(partial(service.close, complete=self._complete))
        except UsageError as error:
            self._refused = error
            self._begun.set()
            if self._warned:
                self._show(first_line(error))
        except _GivenUpError:
            pass
        finally:
            self._done.set()

    def _next(self) -> list[Point]:
        """Wait for points and return them; none once the run has ended and all are sent."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing.is_set())
            self._num_sending = min(_MOST_AT_ONCE, len(self._waiting))
            return [self._waiting.popleft() for _ in range(self._num_sending)]

    def _until_it_works(self, call: Callable[[], _Result]) -> _Result:
        """Return what the call returns, the first time that it does not raise.

        Raises:
            UsageError: the call raised it.
            _GivenUpError: the run has ended, and so has the time for that.

        """
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return call()
            except UsageError:
                raise
            except Exception as error:  # of any library of a service; it is said, and ends nothing
                self._warn(without_password(first_line(error)))
                if time.monotonic() + _FIRST_PAUSE_SECONDS > self._gives_up_at:
                    raise _GivenUpError from error
            if self._closing.wait(pause_seconds):
                time.sleep(_FIRST_PAUSE_SECONDS)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _warn(self, why: str) -> None:
        """Say why the service lacks numbers, once in a start."""
        if not self._warned:
            self._warned = True
            self._show(
                f"{self._name} does not take the numbers ({why}). Training goes on, and it is tried again; "
                f"{MOST_WAITING:,} steps can wait, and metrics.jsonl has all"
            )


def without_password(text: str) -> str:
    """Return a library's message without the name and password that an address in it may hold."""
    return re.sub(r"//[^/@\s]*@", "//", text)
