"""shardwise.protocol.rising: wall time by category as counters."""

from shardwise.protocol.rising import Rising


def test_steps_that_were_lost_take_nothing_back() -> None:
    """The counter of the steps that count stands still until they have made up for those that were lost."""
    counters = Rising()
    counters.after({"step": 36_000.0, "lostSteps": 0.0})
    assert counters.after({"step": 35_700.0, "lostSteps": 300.0}) == {"step": 36_000.0, "lostSteps": 300.0}
    assert counters.after({"step": 35_990.0, "lostSteps": 300.0}) == {"step": 36_000.0, "lostSteps": 300.0}
    assert counters.after({"step": 36_010.0, "lostSteps": 300.0}) == {"step": 36_010.0, "lostSteps": 300.0}


def test_another_round_begins_anew() -> None:
    """A run that was stopped and goes on counts its time from nothing, as Prometheus expects of a new process."""
    counters = Rising()
    counters.after({"step": 500.0, "start": 20.0})
    assert counters.after({"step": 0.0, "start": 5.0}) == {"step": 0.0, "start": 5.0}
    assert counters.after({"step": 3.0, "start": 5.0}) == {"step": 3.0, "start": 5.0}


def test_a_successor_goes_on_from_what_was_served() -> None:
    """Its own time may be less by what its predecessor noted too late, and by steps that were lost before it."""
    counters = Rising({"step": 36_000.0, "lostSteps": 300.0})
    assert counters.after({"step": 35_700.0, "lostSteps": 300.0}) == {"step": 36_000.0, "lostSteps": 300.0}
    assert counters.after({"step": 36_010.0, "lostSteps": 300.0}) == {"step": 36_010.0, "lostSteps": 300.0}
