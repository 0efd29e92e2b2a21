"""Which host is slow by itself, although all ranks make their steps together."""

import pytest

from shardwise.launcher.leader.stragglers import MEASUREMENTS, Slow, Stragglers
from shardwise.protocol.contract import Phase, Progress


def record(rank: int, measured: int, own_seconds: float, waiting: float = 0.0) -> Progress:
    """Return a rank's record after so many measurements; `waiting` is the share of its steps without a batch."""
    return Progress(
        attempt=0,
        rank=rank,
        phase=Phase.STEP,
        step=measured,
        dispatched=measured,
        step_seconds=1.0,
        monotonic_seconds=0.0,
        pid=1,
        seconds={Phase.STEP: 10.0 * measured, "wait": 10.0 * measured * waiting},
        own_seconds=own_seconds,
        measured=measured,
    )


def after(measurements: int, *own_seconds: float, waiting: tuple[float, ...] = (0.0, 0.0, 0.0)) -> Slow | None:
    """Return the slow host after so many measurements of three ranks, each of them always the same."""
    stragglers = Stragglers()
    for number in range(1, measurements + 1):
        ranks = zip(range(3), own_seconds, waiting, strict=True)
        stragglers.observe([record(rank, number, seconds, waits) for rank, seconds, waits in ranks])
    return stragglers.slowest()


@pytest.mark.parametrize(("seconds", "slow"), [(1.4e-3, None), (1.6e-3, 2)])
def test_slow_devices(seconds: float, slow: int | None) -> None:
    """More than one and a half times the others' median is slow."""
    found = after(MEASUREMENTS, 1e-3, 1.1e-3, seconds)
    assert (found.host if found else None) == slow


def test_message() -> None:
    """The message says what is slow, and by how much."""
    found = after(MEASUREMENTS, 3e-3, 1e-3, 1e-3)
    assert found == Slow(host=0, message="its devices take 3.0 times as long as the others'")


def test_no_host_is_reported_too_soon() -> None:
    """Nothing follows before all hosts were measured often enough, nor from one record that is read again and again."""
    assert after(MEASUREMENTS - 1, 1.0, 1.0, 9.0) is None

    stragglers = Stragglers()
    for number in (1, 2):
        for _ in range(MEASUREMENTS):
            stragglers.observe([record(0, number, 1.0), record(1, number, 9.0)])
    assert stragglers.slowest() is None


def test_all_hosts_have_to_be_measured() -> None:
    """A host that has only begun with it, or has not, is neither judged nor a measure of the others."""
    stragglers = Stragglers()
    for number in range(1, MEASUREMENTS + 1):
        stragglers.observe([record(0, number, 1.0), record(1, number, 9.0), record(2, number // MEASUREMENTS, 0.1)])
    assert stragglers.slowest() is None
    for number in range(2, MEASUREMENTS):
        stragglers.observe([record(2, number, 1.0)])
    assert stragglers.slowest() is None


def test_a_host_that_becomes_slow() -> None:
    """However long it was as fast as the others before."""
    stragglers = Stragglers()
    for number in range(1, 100):
        stragglers.observe([record(0, number, 1.0), record(1, number, 9.0 if number > 99 - MEASUREMENTS else 1.0)])
    found = stragglers.slowest()
    assert found is not None
    assert found.host == 1


def test_measurements_without_a_step_between_them() -> None:
    """Nothing is known of the waits then, and nobody is blamed for it."""
    stragglers = Stragglers()
    for number in range(1, MEASUREMENTS + 1):
        ranks = record(0, number, 1.0), record(1, number, 1.0)
        stragglers.observe([each.model_copy(update={"seconds": {Phase.STEP: 1.0, "wait": 0.5}}) for each in ranks])
    assert stragglers.slowest() is None


def test_a_moment_is_no_slow_host() -> None:
    """A host that was held up again and again, but not always, is as fast as before."""
    stragglers = Stragglers()
    for number in range(1, MEASUREMENTS + 1):
        stragglers.observe([record(0, number, 1.0), record(1, number, 9.0 if number > 1 else 1.0)])
    assert stragglers.slowest() is None


@pytest.mark.parametrize(("share", "slow"), [(0.3, None), (0.35, 1)])
def test_slow_data(share: float, slow: int | None) -> None:
    """A host is slow if its steps would take less than two thirds of the time without its waits for data."""
    found = after(MEASUREMENTS, 1e-3, 1e-3, 1e-3, waiting=(0.0, share, 0.0))
    assert (found.host if found else None) == slow


def test_data_that_are_slow_for_all() -> None:
    """If all hosts wait for data, none of them is the slow one."""
    assert after(MEASUREMENTS, 1e-3, 1e-3, 1e-3, waiting=(0.5, 0.6, 0.5)) is None


def test_new_processes_are_measured_again() -> None:
    """What was measured before a restart says nothing about the processes after it."""
    stragglers = Stragglers()
    for number in range(1, MEASUREMENTS + 1):
        stragglers.observe([record(0, number, 1.0), record(1, number, 9.0)])
    assert stragglers.slowest() is not None

    stragglers.restarted()
    assert stragglers.slowest() is None


def test_a_single_host_is_never_slow() -> None:
    """With no other host to compare it with, a host is not slow."""
    stragglers = Stragglers()
    for number in range(1, MEASUREMENTS + 1):
        stragglers.observe([record(0, number, 9.0)])
    assert stragglers.slowest() is None
