"""shardwise.train.control: what signals and clocks ask for, and when it is done."""

import signal

import fsspec
import pytest

from shardwise.protocol.contract import Control
from shardwise.protocol.orders import SAVE_SIGNAL, STOP_SIGNAL
from shardwise.train.control import Controls, StoppedError
from shardwise.train.data.files import find_files


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def test_a_save_is_due_by_time_and_again_after_it_was_done() -> None:
    """Every 60 seconds a save is asked for, counted from the last one."""
    clock = Clock()
    controls = Controls(clock, save_every_seconds=60, stop_after_seconds=None)
    assert controls.due() == Control.NONE

    clock.now += 60
    assert controls.due() == Control.SAVE

    controls.done(Control.SAVE)
    clock.now += 59
    assert controls.due() == Control.NONE


def test_the_deadline_stops_and_stays() -> None:
    """Past the deadline every step asks for a stop, also after a save."""
    clock = Clock()
    controls = Controls(clock, save_every_seconds=None, stop_after_seconds=10)
    clock.now += 10
    controls.done(Control.SAVE)

    assert controls.due() == Control.STOP


def test_the_largest_request_wins_and_a_stop_is_never_undone() -> None:
    """A save that is done does not undo a stop that was asked for meanwhile."""
    controls = Controls(Clock(), save_every_seconds=None, stop_after_seconds=None)
    controls.stepping()
    controls.request(Control.SAVE)
    controls.request(Control.STOP)
    controls.request(Control.MEASURE)
    controls.done(Control.SAVE)

    assert controls.due() == Control.STOP


def test_a_request_is_gone_once_done() -> None:
    """A save that was asked for is done once."""
    controls = Controls(Clock(), save_every_seconds=None, stop_after_seconds=None)
    controls.request(Control.SAVE)
    assert controls.due() == Control.SAVE

    controls.done(Control.SAVE)
    assert controls.due() == Control.NONE


def test_signals_ask_for_a_save_and_for_a_stop() -> None:
    """While stepping the agent's signals decide what is due; the terminal's is ignored; all handlers are put back."""
    before = signal.getsignal(signal.SIGTERM)
    controls = Controls(Clock(), save_every_seconds=None, stop_after_seconds=None)
    with controls.signals():
        controls.stepping()
        signal.raise_signal(SAVE_SIGNAL)
        assert controls.due() == Control.SAVE
        signal.raise_signal(signal.SIGINT)
        assert controls.due() == Control.SAVE
        signal.raise_signal(STOP_SIGNAL)
        assert controls.due() == Control.STOP

    assert signal.getsignal(signal.SIGTERM) is before


def test_before_the_first_step_a_stop_ends_at_once() -> None:
    """There is nothing to save yet, so the handler itself ends the start."""
    controls = Controls(Clock(), save_every_seconds=None, stop_after_seconds=None)
    with controls.signals(), pytest.raises(StoppedError):
        signal.raise_signal(signal.SIGTERM)


def test_a_stop_is_not_taken_for_an_error_of_what_it_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is being read when the stop comes is not called unreadable, which would end the run for good."""
    controls = Controls(Clock(), save_every_seconds=None, stop_after_seconds=None)
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda _: signal.raise_signal(signal.SIGTERM))

    with controls.signals(), pytest.raises(StoppedError):
        find_files(["text.txt"])
