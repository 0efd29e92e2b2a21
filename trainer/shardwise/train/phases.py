"""The phases of a trainer process: timed for the summary, and published as its progress record for the watchdog."""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from shardwise.protocol.contract import Phase, Progress, write_progress

_BEAT_SECONDS = 1.0


class Told(Protocol):
    """Whoever is told what a process is doing, such as its `Phases`."""

    def entered(self, phase: Phase, /) -> AbstractContextManager[None]:
        """Enter a phase while the block runs."""

    def say(self, text: str) -> None:
        """Take what the phase is doing, for people."""

    def beat(self) -> None:
        """Take that the phase makes progress."""


class Phases:
    """The current phase, step and timings of one process; `seconds` adds up by phase."""

    def __init__(self, record: Path, *, attempt: int, rank: int, pid: int) -> None:
        """Write the first progress record."""
        self._record, self._attempt, self._rank, self._pid = record, attempt, rank, pid
        self.seconds: dict[str, float] = {}
        self.step = 0
        self._dispatched, self._step_seconds, self._steps = 0, 0.0, 1
        self._own_seconds, self._measured = 0.0, 0
        self._phase, self._doing = Phase.START, ""
        self._lock, self._written_at = threading.Lock(), 0.0
        self._write()

    @contextmanager
    def entered(self, phase: Phase) -> Iterator[None]:
        """Enter a phase and count its time while the block runs; return to the phase before afterwards."""
        before, start = self._phase, time.perf_counter()
        self._phase = phase
        self._write()
        try:
            yield
        finally:
            self.add(phase, time.perf_counter() - start)
            self._phase, self._doing = before, ""
            self._write()

    def switch_to(self, phase: Phase) -> None:
        """Make this the phase outside of those that are `entered`. Its time is counted elsewhere."""
        self._phase = phase
        self._write()

    def beat(self) -> None:
        """Publish that the phase makes progress, from any thread and as often as you like: about one a second counts.

        A record with a new time keeps the watchdog from taking a long phase for a hang.
        """
        if time.monotonic() - self._written_at >= _BEAT_SECONDS:
            self._write()

    def say(self, text: str) -> None:
        """Publish what the phase is doing, for people, until it says something else or ends. It makes progress."""
        self._doing = text
        self.beat()

    def add(self, name: str, seconds: float) -> None:
        """Add time that was measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def dispatched(self, step: int) -> None:
        """Note that a step has been handed to the devices; the next record has it."""
        self._dispatched = step

    def measured(self, own_seconds: float) -> None:
        """Note another measurement of this host's own speed (`shardwise.train.probe`); the next record has it."""
        self._own_seconds = own_seconds
        self._measured += 1

    def completed(self, step: int, seconds: float) -> None:
        """Publish that this step is complete, since its loss has reached this host, and took so many seconds.

        If it is not the next one after the last, those between them are a part of it.
        """
        self._steps = max(1, step - self.step)
        self.step, self._step_seconds = step, seconds
        self.add(Phase.STEP, seconds)
        self._write()

    def _write(self) -> None:
        with self._lock:
            self._written_at = time.monotonic()
            write_progress(
                self._record,
                Progress(
                    attempt=self._attempt,
                    rank=self._rank,
                    phase=self._phase,
                    doing=self._doing,
                    step=self.step,
                    dispatched=self._dispatched,
                    step_seconds=self._step_seconds,
                    steps=self._steps,
                    monotonic_seconds=self._written_at,
                    pid=self._pid,
                    seconds=dict(self.seconds),
                    own_seconds=self._own_seconds,
                    measured=self._measured,
                ),
            )
