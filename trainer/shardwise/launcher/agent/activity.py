"""Whether a host's trainer does anything: by its progress record, by the processors that it uses, by what it writes.

A trainer, and a program with the library, is judged by its record. A program that has written none is a *silent* one:
of it only the use of processors and the output are known, and each counts as progress.
"""

from shardwise.launcher.agent.trainer import Trainer
from shardwise.launcher.system.cpu_time import CpuActivity
from shardwise.protocol.contract import Progress
from shardwise.protocol.storage import passing_over


class Activity:
    """The activity of one trainer, from its orders at `now` (monotonic seconds) on."""

    def __init__(self, now: float, *, is_program: bool) -> None:
        """Assume at first that it works."""
        self._ordered_at = self._wrote_at = now
        self._is_program = is_program
        self._cpu = CpuActivity(now)
        self._log_bytes = 0

    def observe(self, trainer: Trainer, progress: Progress | None, now: float) -> None:
        """Notice what it has done since the last call; `progress` is its last record."""
        self._cpu.observe(self._used(trainer, progress), now)
        if self._is_program and progress is None:
            with passing_over():  # its volume may fail for a while: what it has written is seen at a later look
                self._notice_output(trainer.log_bytes, now)

    def _notice_output(self, log_bytes: int, now: float) -> None:
        if log_bytes != self._log_bytes:
            self._log_bytes, self._wrote_at = log_bytes, now

    def _used(self, trainer: Trainer, progress: Progress | None) -> float:
        """Return the processor time of the one that counts: of a program the process that reports, of a silent all."""
        if not self._is_program:
            return trainer.cpu_seconds
        # The agent's own child may be a script, which waits for the process that reports.
        return trainer.cpu_seconds_of(progress.pid) if progress else trainer.family_cpu_seconds

    def resting_seconds(self, now: float) -> float:
        """Return for how long it has hardly used a processor."""
        return self._cpu.resting_seconds(now)

    def age_seconds(self, progress: Progress | None, now: float) -> float:
        """Return for how long there has been no progress."""
        if progress:
            return max(0.0, now - progress.monotonic_seconds)
        if self._is_program:
            return max(0.0, min(now - self._wrote_at, self.resting_seconds(now)))
        return max(0.0, now - self._ordered_at)
