"""The control word of this process: what was asked of the run from outside, and what the clock makes due.

Called by the loop, which puts `word()` into every step and acts on the maximum over all processes one step later. So
every process saves, evaluates and stops at the same step, though only one of them heard the signal.

The signals are those of `shardwise.job.orders`: stop (save, then end) and save (and go on).
"""

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from shardwise.job.contract import Control
from shardwise.job.orders import SAVE_SIGNAL, STOP_SIGNAL

Clock = Callable[[], float]

_MEASURING_SHARE = 0.005
_MEASURE_EVERY_SECONDS = 1.0


class StoppedError(BaseException):
    """A stop was asked for before the first step: there is nothing to save.

    It can come out of any line, so it is no Exception: where those of a library are caught and put into words, such as
    those of reading a file, a stop must not be taken for one.
    """


class Controls:
    """Requests and due times of one process.

    Args:
        clock: monotonic seconds.
        save_every_seconds: how often a save is due, or None.
        stop_after_seconds: the deadline of this process, or None.
        measures: whether the speed of this host is measured now and then: there are others to compare with.

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

    def request(self, word: Control) -> None:
        """Ask for something; the largest request wins."""
        self._requested = max(self._requested, word)

    def word(self) -> Control:
        """What this process asks of the next step."""
        now = self._clock()
        if self._stop_at is not None and now >= self._stop_at:
            return Control.STOP
        if self._save_every_seconds is not None and now - self._saved_at >= self._save_every_seconds:
            return max(self._requested, Control.SAVE)
        return max(self._requested, Control.MEASURE if now >= self._measure_at else Control.NONE)

    def done(self, word: Control) -> None:
        """What was asked for has been done; a stop is never undone."""
        if word >= Control.SAVE:
            self._saved_at = self._clock()
        if self._requested <= word and self._requested != Control.STOP:
            self._requested = Control.NONE

    def measured(self, pause_seconds: float) -> None:
        """The speed was measured, and training stood still for so long: not again until that is a small share."""
        self._measure_at = self._clock() + max(_MEASURE_EVERY_SECONDS, pause_seconds / _MEASURING_SHARE)

    def stepping(self) -> None:
        """From here on a stop waits for the step to end."""
        self._stepping = True
        if self._requested == Control.STOP:
            raise StoppedError

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Hear the signals while the block runs. The terminal's SIGINT is the command's to hear, which passes it on."""
        before = {
            STOP_SIGNAL: signal.signal(STOP_SIGNAL, self._stop),
            SAVE_SIGNAL: signal.signal(SAVE_SIGNAL, self._save),
            signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.request(Control.STOP)
        if not self._stepping:
            raise StoppedError

    def _save(self, _number: int, _frame: FrameType | None) -> None:
        self.request(Control.SAVE)
