"""Whether a process works although it reports nothing: judged by the processor time that it uses.

Before the first step some phases report nothing until they are over, and a large program takes long to compile. That is
work all the same, whereas a process that waits for another one, or that was stopped, uses next to no processor time.
"""

_SHARE = 0.05  # of one core, from which on a process counts as working
_WINDOW_SECONDS = 1.0  # the kernel counts in hundredths of a second, so a share over less time means little


class CpuActivity:
    """The processor time of one process, or of several together, from `now` (monotonic seconds) on."""

    def __init__(self, now: float) -> None:
        """Assume at first that the process works."""
        self._since = self._worked_at = now
        self._cpu_seconds = 0.0

    def observe(self, cpu_seconds: float, now: float) -> None:
        """Take in how much processor time has been used since the start.

        If it is less than before, one of several has ended with what it had used: that is no rest either.
        """
        passed = now - self._since
        if passed < _WINDOW_SECONDS:
            return
        used = cpu_seconds - self._cpu_seconds
        if used >= _SHARE * passed or used < 0:
            self._worked_at = now
        self._since, self._cpu_seconds = now, cpu_seconds

    def resting_seconds(self, now: float) -> float:
        """Return for how long it has used less than a twentieth of a core."""
        return max(0.0, now - self._worked_at)
