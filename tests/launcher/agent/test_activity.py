"""shardwise.launcher.agent.activity: what counts as progress of a trainer, and of a program that reports nothing."""

import errno
import os
from dataclasses import dataclass, replace
from typing import cast
from unittest.mock import PropertyMock, patch

import pytest

from shardwise.launcher.agent.activity import Activity
from shardwise.launcher.agent.trainer import Trainer
from shardwise.protocol.contract import Phase, Progress


@dataclass
class Seen:
    """What an agent sees of a process."""

    cpu_seconds: float = 0.0
    family_cpu_seconds: float = 0.0
    log_bytes: int = 0
    reporting_cpu_seconds: float = 0.0

    def cpu_seconds_of(self, pid: int) -> float:
        """Return what the process that reports has used, which a script may have started."""
        assert pid == record(0.0).pid
        return self.reporting_cpu_seconds


def record(at: float) -> Progress:
    """A progress record that was written at this time."""
    return Progress(
        attempt=0,
        rank=0,
        phase=Phase.STEP,
        step=1,
        dispatched=1,
        step_seconds=1.0,
        monotonic_seconds=at,
        pid=1,
        seconds={},
    )


ONE_SECOND = {
    "nothing": Seen(),
    "output": Seen(log_bytes=10),
    "work": Seen(cpu_seconds=0.5, family_cpu_seconds=0.5, reporting_cpu_seconds=0.5),
    "work of a child": Seen(family_cpu_seconds=0.5),
}


@pytest.mark.parametrize(
    ("does", "is_program", "reports", "age_seconds"),
    [
        ("nothing", True, False, 7200),
        ("output", True, False, 0),
        ("work", True, False, 0),
        ("work of a child", True, False, 0),
        ("output", True, True, 7100),
        ("work", True, True, 7100),
        ("work", False, False, 7200),
        ("output", False, False, 7200),
    ],
)
def test_age_after_two_hours(does: str, *, is_program: bool, reports: bool, age_seconds: float) -> None:
    """Output and work are progress of a silent program alone, and for however long; of any other its record is."""
    activity, seen = Activity(0.0, is_program=is_program), Seen()
    progress = record(100.0) if reports else None
    for second in range(1, 7201):
        step = ONE_SECOND[does]
        seen = replace(
            seen,
            cpu_seconds=seen.cpu_seconds + step.cpu_seconds,
            family_cpu_seconds=seen.family_cpu_seconds + step.family_cpu_seconds,
            log_bytes=seen.log_bytes + step.log_bytes,
        )
        activity.observe(cast("Trainer", seen), progress, float(second))

    assert age_seconds == activity.age_seconds(progress, 7200.0)


def test_a_program_that_reports_rests_by_itself() -> None:
    """Once it reports, only its own use of a processor says whether it works."""
    activity, seen = Activity(0.0, is_program=True), Seen()
    for second in range(1, 61):
        seen = replace(seen, family_cpu_seconds=float(second))
        activity.observe(cast("Trainer", seen), record(0.0), float(second))

    assert activity.resting_seconds(60.0) == 60.0


def test_a_program_that_a_script_has_started() -> None:
    """Once it reports, its work counts, which is a compilation at first, and not that of the script that waits."""
    activity, seen = Activity(0.0, is_program=True), Seen()
    for second in range(1, 61):
        seen = replace(seen, family_cpu_seconds=float(second), reporting_cpu_seconds=float(second))
        activity.observe(cast("Trainer", seen), record(0.0), float(second))

    assert activity.resting_seconds(60.0) == 0.0


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
def test_a_log_that_cannot_be_looked_at(number: int) -> None:
    """While its volume fails, a silent program's use of processors says whether it works; then its output does too."""
    activity = Activity(0.0, is_program=True)
    volume = PropertyMock(side_effect=OSError(number, os.strerror(number)))
    with patch.object(Seen, "log_bytes", volume, create=True):
        activity.observe(cast("Trainer", Seen.__new__(Seen)), None, 1.0)
    assert activity.age_seconds(None, 20.0) == 20.0

    activity.observe(cast("Trainer", Seen(log_bytes=10)), None, 30.0)
    assert activity.age_seconds(None, 30.0) == 0.0


def test_a_log_that_no_one_may_look_at() -> None:
    """An error that stays is told."""
    with (
        patch.object(Seen, "log_bytes", PropertyMock(side_effect=PermissionError(errno.EACCES, "no")), create=True),
        pytest.raises(PermissionError),
    ):
        Activity(0.0, is_program=True).observe(cast("Trainer", Seen.__new__(Seen)), None, 1.0)
