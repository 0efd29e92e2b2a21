"""shardwise.launcher.leader.program_exits: how a program ends that was told to stop."""

import pytest

from shardwise.launcher.leader.program_exits import understood
from shardwise.protocol.contract import Phase, Progress
from shardwise.protocol.report import Exit


def ended(code: int | None, by: int | None = None) -> Exit:
    """An exit that no one asked for."""
    return Exit(attempt=0, code=code, signal=by, asked=False, out_of_memory=False, log_tail="")


def reported(phase: Phase) -> Progress:
    """The last record of a process in this phase."""
    numbers = {"attempt": 0, "rank": 0, "step": 3, "dispatched": 3, "step_seconds": 1.0, "monotonic_seconds": 1.0}
    return Progress.model_validate({**numbers, "phase": phase, "pid": 1, "seconds": {}})


@pytest.mark.parametrize(
    ("code", "progress", "understood_as"),
    [
        (0, None, 80),
        (0, reported(Phase.STEP), 80),
        (0, reported(Phase.DONE), 0),
        (143, None, 80),
        (80, reported(Phase.STEP), 80),
        (1, None, 1),
        (137, None, 137),
    ],
)
def test_understood(code: int, progress: Progress | None, understood_as: int) -> None:
    """0 and 143 are a stop unless the program has reported that it is complete; anything else is what it is."""
    assert understood(ended(code), progress).code == understood_as
