"""What one process asks of the run: by signals from outside, and by its clock.

The loop puts `due()` into every step and acts, one step later, on the maximum over all processes. So every process
saves, measures and stops at the same step, though only one of them received the signal. The signals are those of
`shardwise.protocol.orders`: stop (save, then end) and save (then go on).
"""

import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from shardwise.protocol.contract import Control
from shardwise.protocol.orders import SAVE_SIGNAL, STOP_SIGNAL

Clock = Callable[[], float]
Handler = Callable[[int, FrameType | None], object] | int | None

_MEASURING_SHARE = 0.005
_MEASURE_EVERY_SECONDS = 1.0


class StoppedError(BaseException):
    """A stop was requested before the first step, when there is nothing to save.

    A signal handler raises it, so it can come out of any line. It is no Exception: code that catches the errors of a
    library, such as those of reading a file, must not take a stop for one of them.
    """


class Controls:
    """Requests and due times of one process.

    Args:
        clock: monotonic seconds.
        save_every_seconds: how often a save is due, or None.
        stop_after_seconds: the deadline of this process, or None.
        measures: whether to give this host's devices a piece of work of their own now and then (`train.probe`).

    """

    def __init__(
        self,
        clock: Clock,
        *,
        save_every_seconds: float | None,
        stop_after_seconds: float | None,
        measures: bool = False,
    ) -> None:
        """Start counting now."""
        self._clock = clock
        self._save_every_seconds = save_every_seconds
        self._requested = Control.NONE
        self._saved_at = clock()
        self._stop_at = None if stop_after_seconds is None else clock() + stop_after_seconds
        self._stepping = False
        self._measure_at = clock() if measures else math.inf
        self._before: dict[int, Handler] = {}

    def request(self, control: Control) -> None:
        """Request this; the largest request wins."""
        self._requested = max(self._requested, control)

    def due(self) -> Control:
        """Return what this process asks of the next step."""
        now = self._clock()
        if self._stop_at is not None and now >= self._stop_at:
            return Control.STOP
        if self._save_every_seconds is not None and now - self._saved_at >= self._save_every_seconds:
            return max(self._requested, Control.SAVE)
        return max(self._requested, Control.MEASURE if now >= self._measure_at else Control.NONE)

    def done(self, control: Control) -> None:
        """Note that this has been done. A save does not cancel a stop that was requested meanwhile."""
        if control >= Control.SAVE:
            self._saved_at = self._clock()
        if self._requested <= control and self._requested != Control.STOP:
            self._requested = Control.NONE

    def measured(self, pause_seconds: float) -> None:
        """Wait with the next measurement until this pause of training is a small share of the time."""
        self._measure_at = self._clock() + max(_MEASURE_EVERY_SECONDS, pause_seconds / _MEASURING_SHARE)

    def stepping(self) -> None:
        """Make a stop wait for the end of its step from here on; raise StoppedError if one was requested already."""
        self._stepping = True
        if self._requested == Control.STOP:
            raise StoppedError

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Handle the signals while the block runs, and ignore SIGINT: the command gets it and asks for a stop.

        A forked child, such as a worker that loads data, is no part of the run, and takes them as if there were none.
        """
        self._before = {
            STOP_SIGNAL: signal.signal(STOP_SIGNAL, self._stop),
            SAVE_SIGNAL: signal.signal(SAVE_SIGNAL, self._save),
            signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        }
        os.register_at_fork(after_in_child=self._put_back)
        try:
            yield
        finally:
            self._put_back()

    def _put_back(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        is_known = self._requested == Control.STOP
        self.request(Control.STOP)
        if not (self._stepping or is_known):  # a second one must not interrupt what ends the process for the first
            raise StoppedError

    def _save(self, _number: int, _frame: FrameType | None) -> None:
        self.request(Control.SAVE)
