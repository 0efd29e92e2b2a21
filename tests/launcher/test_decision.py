"""What the leader does with what it sees of an incarnation."""

import signal
from dataclasses import replace

import pytest

from shardwise.job.contract import ExitCode
from shardwise.launcher.decision import Action, Observed, decide
from shardwise.launcher.report import Exit

RUNS = Observed(num_hosts=2, exits={}, lost=(), hung=False, stop_asked=False, stopping=None, stepped=True)


def ended(code: int | None, by: int | None = None) -> Exit:
    """Return an end that nobody asked for."""
    return Exit(incarnation=0, code=code, signal=by, asked=False, out_of_memory=False, log_tail="")


OK, SAVED, FAILED = ended(ExitCode.OK), ended(ExitCode.SAVED), ended(1)
TERMINATED = ended(None, signal.SIGTERM)


@pytest.mark.parametrize(
    ("change", "action"),
    [
        ({}, Action.WAIT),
        ({"exits": {0: OK}}, Action.WAIT),
        ({"exits": {0: OK, 1: OK}}, Action.COMPLETE),
        ({"exits": {0: SAVED, 1: SAVED}}, Action.SAVED),
        ({"exits": {0: SAVED, 1: OK}}, Action.SAVED),
        ({"exits": {1: FAILED}}, Action.END),
        ({"exits": {0: SAVED, 1: FAILED}}, Action.END),
        ({"lost": [1]}, Action.END),
        ({"hung": True}, Action.END),
        ({"hung": True, "exits": {0: OK}}, Action.END),
        ({"stop_asked": True}, Action.STOP),
        ({"stop_asked": True, "stopping": 100.0}, Action.WAIT),
        ({"stop_asked": True, "stopping": 100.0, "hung": True}, Action.END),
        ({"stop_asked": True, "stopping": 1.9, "stepped": False}, Action.WAIT),
        ({"stop_asked": True, "stopping": 2.0, "stepped": False}, Action.LEAVE),
        ({"exits": {1: SAVED}}, Action.STOP),
        ({"exits": {1: TERMINATED}}, Action.STOP),
        ({"exits": {1: TERMINATED}, "stopping": 2.0, "stepped": False}, Action.LEAVE),
    ],
)
def test_action(change: dict[str, object], action: Action) -> None:
    """A bad end comes first; a stop is passed on once; what has nothing to save is not waited for."""
    assert decide(replace(RUNS, **change)) == action  # type: ignore[arg-type]
