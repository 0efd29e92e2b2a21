"""How fast: a limit on the rate of requests, and the pauses between tries of what failed."""

import random
import threading
import time
from collections.abc import Callable

_MOST_PAUSE_SECONDS = 30.0
_CHANCE = random.Random()  # noqa: S311  spreads load, guards nothing; not the module's own, whose state is everybody's


class Limiter:
    """At most `qps` requests a second over time, and `burst` at once, over all threads."""

    def __init__(
        self,
        qps: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._interval_seconds = 1 / qps
        self._ahead_seconds = (burst - 1) / qps
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._next = clock() - self._ahead_seconds

    def wait(self) -> None:
        """Wait for this request's turn. Turns come in the order of the calls."""
        if seconds := self._turn(most=float("inf")):
            self._sleep(seconds)

    def taken(self) -> bool:
        """Take a turn if there is one now; return False if it would have to wait."""
        return not self._turn(most=0.0)

    def _turn(self, *, most: float) -> float:
        """Reserve the next slot if it is at most `most` seconds away; return the wait."""
        with self._lock:
            now = self._clock()
            turn = max(self._next, now - self._ahead_seconds)
            if turn - now <= most:
                self._next = turn + self._interval_seconds
            return max(0.0, turn - now)

    def pause(self, seconds: float) -> None:
        """Give no turn for so many seconds, at most half a minute, because the server asks for it."""
        with self._lock:
            self._next = max(self._next, self._clock() + min(seconds, _MOST_PAUSE_SECONDS))


def retry_seconds(failures: int, *, first: float, most: float) -> float:
    """Return the pause before the next try after `failures` in a row, from 1: doubled each time, up to `most`.

    Half of it is chance, so that many who failed together do not come back together.
    """
    whole: float = min(most, first * 2.0 ** min(failures - 1, 32))
    return whole * spread(0.5, 1.0)


def spread(low: float, high: float) -> float:
    """Return a number between the two by chance, so that what began together does not go on together."""
    return _CHANCE.uniform(low, high)
