"""Whether a process works, though it says nothing: by the processor time that it uses.

Called by `host.py` every second or so with what the kernel has counted. Before the first step there are phases that say
nothing until they are over, and a large program takes long to compile: it is work all the same. A process that waits
for another one, or that was stopped, uses next to nothing.
"""

_SHARE = 0.05
_WINDOW_SECONDS = 1.0


class Effort:
    """The processor time of one process, from `now` (monotonic seconds) on."""

    def __init__(self, now: float) -> None:
        """It is taken to work at first."""
        self._since, self._cpu_seconds, self._worked_at = now, 0.0, now

    def look(self, cpu_seconds: float, now: float) -> None:
        """All that it has used so far."""
        passed = now - self._since
        if passed < _WINDOW_SECONDS:
            return
        if cpu_seconds - self._cpu_seconds >= _SHARE * passed:
            self._worked_at = now
        self._since, self._cpu_seconds = now, cpu_seconds

    def resting_seconds(self, now: float) -> float:
        """For how long it has used less than a twentieth of a core."""
        return max(0.0, now - self._worked_at)
