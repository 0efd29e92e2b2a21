"""Where the time went, and where the process stands: phases timed for the summary and told to whoever watches.

Called by the start and the loop.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardwise.job.contract import Phase, Progress, write_progress

_BEAT_SECONDS = 1.0


class Phases:
    """The phases of one process: `seconds` adds up by phase, and the progress record says where it is."""

    def __init__(self, record: Path, *, incarnation: int, rank: int, pid: int) -> None:
        """Say that the process has started."""
        self._record, self._incarnation, self._rank, self._pid = record, incarnation, rank, pid
        self.seconds: dict[str, float] = {}
        self.step = 0
        self._dispatched, self._step_seconds = 0, 0.0
        self._own_seconds, self._measured = 0.0, 0
        self._phase = Phase.START
        self._lock, self._written_at = threading.Lock(), 0.0
        self._write()

    @contextmanager
    def entered(self, phase: Phase) -> Iterator[None]:
        """Be in a phase while the block runs, then again in the one before."""
        before, start = self._phase, time.perf_counter()
        self._phase = phase
        self._write()
        try:
            yield
        finally:
            self.add(phase, time.perf_counter() - start)
            self._phase = before
            self._write()

    def be(self, phase: Phase) -> None:
        """Be in a phase from here on, between those that are entered; its time is counted elsewhere."""
        self._phase = phase
        self._write()

    def beat(self) -> None:
        """Say that the phase gets on, from any thread: so many bytes more, or a batch. Said about once a second."""
        if time.monotonic() - self._written_at >= _BEAT_SECONDS:
            self._write()

    def add(self, name: str, seconds: float) -> None:
        """Count time that was measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def dispatched(self, step: int) -> None:
        """A step has been handed to the devices; told with the next record."""
        self._dispatched = step

    def measured(self, own_seconds: float) -> None:
        """This host's own speed has been measured once more (`shardwise.train.probe`); told with the next record."""
        self._own_seconds = own_seconds
        self._measured += 1

    def completed(self, step: int, seconds: float) -> None:
        """So many steps are complete, the last in so many seconds: their losses have reached this host."""
        self.step, self._step_seconds = step, seconds
        self.add(Phase.STEP, seconds)
        self._write()

    def _write(self) -> None:
        with self._lock:
            self._written_at = time.monotonic()
            write_progress(
                self._record,
                Progress(
                    incarnation=self._incarnation,
                    rank=self._rank,
                    phase=self._phase,
                    step=self.step,
                    dispatched=self._dispatched,
                    step_seconds=self._step_seconds,
                    monotonic_seconds=self._written_at,
                    pid=self._pid,
                    seconds=dict(self.seconds),
                    own_seconds=self._own_seconds,
                    measured=self._measured,
                ),
            )
