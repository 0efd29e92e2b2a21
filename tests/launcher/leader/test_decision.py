"""What the leader does with what it sees of an attempt."""

import signal
from dataclasses import replace

import pytest

from shardwise.launcher.leader.decision import Action, Observed, decide
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.report import Exit

RUNS = Observed(num_hosts=2, exits={}, lost=(), hung=False, stop_asked=False, stopping_seconds=None, stepped=True)


def ended(code: int | None, by: int | None = None) -> Exit:
    """Return an exit that no one asked for."""
    return Exit(attempt=0, code=code, signal=by, asked=False, out_of_memory=False, log_tail="")


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
        ({"stop_asked": True, "stopping_seconds": 100.0}, Action.WAIT),
        ({"stop_asked": True, "stopping_seconds": 100.0, "hung": True}, Action.END),
        ({"stop_asked": True, "stopping_seconds": 1.9, "stepped": False}, Action.WAIT),
        ({"stop_asked": True, "stopping_seconds": 2.0, "stepped": False}, Action.LEAVE),
        ({"stop_asked": True, "stopping_seconds": 2.0, "stepped": False, "silent": True}, Action.WAIT),
        ({"stop_asked": True, "stopping_seconds": 120.0, "stepped": False, "silent": True}, Action.LEAVE),
        ({"stop_asked": True, "stopping_seconds": 120.0, "unheeded_steps": 9}, Action.WAIT),
        ({"stop_asked": True, "stopping_seconds": 119.9, "unheeded_steps": 10}, Action.WAIT),
        ({"stop_asked": True, "stopping_seconds": 120.0, "unheeded_steps": 10}, Action.GIVE_UP),
        ({"exits": {1: SAVED}}, Action.STOP),
        ({"exits": {1: TERMINATED}}, Action.STOP),
        ({"exits": {1: TERMINATED}, "stopping_seconds": 2.0, "stepped": False}, Action.LEAVE),
    ],
)
def test_action(change: dict[str, object], action: Action) -> None:
    """A bad end comes first; a stop is passed on once; who has nothing to save, or goes on, is not waited for."""
    assert decide(replace(RUNS, **change)) == action  # type: ignore[arg-type]
