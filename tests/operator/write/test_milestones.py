"""The life of a job as events, from each status that is written and the one before it."""

from typing import Any

import pytest

from shardwise_operator.write.milestones import milestones

PENDING: dict[str, Any] = {"phase": "Pending", "hosts": {"ready": 0, "of": 4, "summary": "0/4"}}
RUNNING = {**PENDING, "phase": "Running", "progress": {"step": 3, "of": 100}}

SAVED = {"checkpoint": {"step": 50, "time": "2027-01-15T08:00:00Z"}}
OLD = "the newest checkpoint is that of step 50, 1h30m old"
FAILED = {"failedSaves": {"inARow": 1, "reason": "503", "time": "2027-01-15T09:00:00Z"}}


def _scheduled(reason: str, message: str = "", status: str = "False") -> dict[str, Any]:
    condition = {"type": "Scheduled", "status": status, "reason": reason, "message": message}
    return {**PENDING, "conditions": [condition]}


def _told(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(event.type, event.reason, event.message) for event in milestones(before, after)]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, PENDING, []),
        ({}, _scheduled("Scheduling"), []),
        (PENDING, _scheduled("WaitingForSlice", "3 pods wait"), [("Normal", "WaitingForSlice", "3 pods wait")]),
        (_scheduled("Scheduling"), _scheduled("Unschedulable", "no"), [("Warning", "Unschedulable", "no")]),
        (_scheduled("Unschedulable", "no"), _scheduled("Unschedulable", "still no"), []),
        (PENDING, _scheduled("QuotaExceeded", "used up"), [("Warning", "QuotaExceeded", "used up")]),
        (
            _scheduled("Unschedulable"),
            _scheduled("Placed", status="True"),
            [("Normal", "Placed", "each of the 4 hosts has a node")],
        ),
        (
            PENDING,
            {**_scheduled("Placed", status="True"), "phase": "Starting"},
            [("Normal", "Started", "all 4 hosts run")],
        ),
        (PENDING, RUNNING, [("Normal", "Running", "training: step 3 of 100")]),
        ({**RUNNING, "phase": "Recovering"}, RUNNING, [("Normal", "Recovered", "training: step 3 of 100")]),
        (RUNNING, {**RUNNING, "progress": {"step": 4, "of": 100}}, []),
        (
            RUNNING,
            {**RUNNING, "checkpoint": {"step": 50, "seconds": "1.25"}},
            [("Normal", "Saved", "a checkpoint of step 50 in 1.25 s")],
        ),
        ({**RUNNING, "checkpoint": {"step": 50}}, {**RUNNING, "checkpoint": {"step": 50, "time": "later"}}, []),
        (
            RUNNING,
            {**RUNNING, **FAILED},
            [("Warning", "SaveFailed", "a save has failed: 503; there is no checkpoint yet")],
        ),
        (
            {**RUNNING, **SAVED, **FAILED},
            {**RUNNING, **SAVED, "failedSaves": {**FAILED["failedSaves"], "inARow": 2, "time": "2027-01-15T09:30:00Z"}},
            [("Warning", "SaveFailed", f"2 saves in a row have failed, the last one: 503; {OLD}")],
        ),
        ({**RUNNING, **SAVED, **FAILED}, {**RUNNING, **SAVED}, []),
        (
            {**RUNNING, "restarts": {"failure": 1}},
            {**RUNNING, "restarts": {"failure": 2, "eviction": 1, "hostLost": 1}, "losses": {"eviction": 1}},
            [("Warning", "Restarted", "the trainers ended and start again: failure (2 so far)")],
        ),
        (
            RUNNING,
            {**RUNNING, "phase": "Recovering", "message": "rank 1 hangs; 2 of 3 are left", "restarts": {"hang": 1}},
            [
                (
                    "Warning",
                    "Restarted",
                    "the trainers ended and start again: hang (1 so far); rank 1 hangs; 2 of 3 are left",
                )
            ],
        ),
    ],
)
def test_what_a_status_says_anew(
    before: dict[str, Any], after: dict[str, Any], told: list[tuple[str, str, str]]
) -> None:
    """Each thing once, when it is written; of a start the furthest thing that it came to."""
    assert _told(before, after) == told
    assert _told(after, after) == []
