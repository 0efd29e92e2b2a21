"""The phases that a status keeps of a job: contiguous, bounded, numbered, and with the restart that they are due to."""

import json
import random
from typing import Any

import pytest
from tests.operator.building import NOW

from shardwise.protocol.job_status import MAX_PHASES, JobStatus
from shardwise_operator.observe.state import Phase
from shardwise_operator.runtime.kinds import seconds_of
from shardwise_operator.write.phases import recorded

Status = dict[str, Any]


def _after(
    old: Status, phase: Phase, at: float, *, step: int | None = None, restarts: dict[str, int] | None = None
) -> Status:
    """Return the part of the next status that this is about, as it comes back from the API server."""
    counts = old.get("restarts", {}) if restarts is None else restarts
    status = {"phase": phase.value, "restarts": counts, "phases": [*recorded(old, phase, counts, step, NOW + at)]}
    JobStatus.model_validate(status, by_alias=True, by_name=False)
    read: Status = json.loads(json.dumps(status))
    return read


def test_a_life_in_phases() -> None:
    """Each begins where the one before ends, to the millisecond; the one that lasts, and the end, have no end."""
    status = _after({}, Phase.PENDING, 0.0)
    status = _after(status, Phase.STARTING, 1.5)
    status = _after(status, Phase.RUNNING, 2.125)
    status = _after(status, Phase.RUNNING, 3.0, step=9)
    status = _after(status, Phase.COMPLETE, 10.0, step=100)

    assert status["phases"] == [
        {"name": "Pending", "number": 0, "start": "2027-01-15T08:00:00.000Z", "end": "2027-01-15T08:00:01.500Z"},
        {"name": "Starting", "number": 1, "start": "2027-01-15T08:00:01.500Z", "end": "2027-01-15T08:00:02.125Z"},
        {
            "name": "Running",
            "number": 2,
            "start": "2027-01-15T08:00:02.125Z",
            "end": "2027-01-15T08:00:10.000Z",
            "step": 100,
        },
        {"name": "Complete", "number": 3, "start": "2027-01-15T08:00:10.000Z"},
    ]


@pytest.mark.parametrize(
    ("phase", "causes"),
    [
        (Phase.RECOVERING, ["hang", "eviction"]),
        (Phase.PENDING, ["hang", "eviction"]),
        (Phase.RUNNING, ["eviction"]),
        (Phase.COMPLETE, ["eviction", None]),
        (Phase.SUSPENDING, ["eviction", None]),
    ],
)
def test_the_cause_of_a_restart(phase: Phase, causes: list[str | None]) -> None:
    """It stands where the restart has brought the job; one that nobody saw, in the phase that it happened in."""
    status = _after({}, Phase.RUNNING, 0.0, restarts={"hang": 1})

    status = _after(status, phase, 1.0, restarts={"eviction": 1, "hang": 1})

    assert [each.get("cause") for each in status["phases"]] == causes


def test_the_newest_cause_counts() -> None:
    """A restart that fails again for another reason: the recovery lasts for that one; time alone changes nothing."""
    status = _after({}, Phase.RUNNING, 0.0)
    status = _after(status, Phase.RECOVERING, 1.0, restarts={"hang": 1})
    again = _after(status, Phase.RECOVERING, 2.0, restarts={"hang": 1, "storage": 1})

    assert [each.get("cause") for each in again["phases"]] == [None, "storage"]
    assert _after(again, Phase.RECOVERING, 3.0)["phases"] == again["phases"]


def test_only_the_last_are_kept() -> None:
    """However long a job lives, the numbers go on and the status stays small."""
    draws, status, at = random.Random(3), Status(), 0.0
    for _ in range(500):
        at += draws.uniform(0.0, 100.0)
        status = _after(status, draws.choice(list(Phase)), at, step=2**31 - 1, restarts={"outOfMemory": int(at)})
        records = status["phases"]
        starts, ends = ([each.get(name) for each in records] for name in ("start", "end"))

        assert starts[1:] == ends[:-1]
        assert ends[-1] is None
        assert starts == sorted(starts)
        numbers = [each["number"] for each in records]
        assert numbers == list(range(numbers[0], numbers[0] + len(records)))
        assert len(records) <= MAX_PHASES
        assert len(json.dumps(records, separators=(",", ":"))) < 2000
    assert status["phases"][-1]["number"] > 400


def test_another_operator_s_clock_may_be_behind() -> None:
    """A phase never ends before it began, whatever the time is where the next pass is made."""
    status = _after({}, Phase.RUNNING, 60.0)

    first, second = _after(status, Phase.RECOVERING, 0.0)["phases"]

    assert first["start"] == first["end"] == second["start"]


def test_a_job_of_an_operator_that_kept_none() -> None:
    """Nothing is written of it before its phase changes, and the phase that had begun before is not made up."""
    old = {"phase": "Running", "progress": {"step": 7}}

    assert recorded(old, Phase.RUNNING, {}, 8, NOW) == ()
    (record,) = recorded(old, Phase.RECOVERING, {"hang": 1}, 8, NOW)
    assert record == {"name": "Recovering", "number": 0, "start": "2027-01-15T08:00:00.000Z", "cause": "hang"}


def test_a_phase_that_an_older_operator_has_not_recorded() -> None:
    """After a rollback and back: what it left open ends when the next pass sees that the job is elsewhere."""
    status = _after({}, Phase.PENDING, 0.0)

    records = recorded({**status, "phase": "Running"}, Phase.RUNNING, {}, None, NOW + 60)

    assert [each["name"] for each in records] == ["Pending", "Running"]
    assert seconds_of(records[0]["end"]) == NOW + 60
