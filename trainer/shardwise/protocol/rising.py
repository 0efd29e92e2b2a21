"""The wall time of a run by category as counters of Prometheus, which must not go down while the run goes on.

Time in steps becomes that of lost steps once a restart repeats them. Prometheus takes a counter that goes down for one
that has begun anew, and would count all of it a second time.
"""

import threading
from collections.abc import Mapping

_LEAST_SECONDS = 60.0  # by which the time is less where it begins anew: two leaders' clocks may differ


class Rising:
    """The counters of one run, for any thread."""

    def __init__(self, served: Mapping[str, float] | None = None) -> None:
        """Begin with what a predecessor has served; None without one."""
        self._lock = threading.Lock()
        self._seconds = dict(served or {})
        self._total = 0.0

    def after(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """Return the counters after this time by category: one that would go down waits until it is passed again.

        Where the sum is less than before, another round or command has begun, and all begin anew.
        """
        with self._lock:
            total = sum(seconds.values())
            before = {} if total < self._total - _LEAST_SECONDS else self._seconds
            self._total = total
            self._seconds = {name: max(value, before.get(name, 0.0)) for name, value in seconds.items()}
            return self._seconds
