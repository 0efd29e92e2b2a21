"""A ConfigMap in a round's place that this operator has not made: it goes, and keeps nothing from ending."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import NOW, SETTINGS, begun, evicted, pod, record, seen

from shardwise_operator.decide.decide import decide
from shardwise_operator.decide.plan import Delete, Plan
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.state import Phase, State
from shardwise_operator.runtime.kinds import CONFIG_MAPS

GOES = Delete(CONFIG_MAPS, "job-shardwise-0", "theirs")


def _plan(state: State | None, *pods: Pod, **fields: Any) -> Plan:
    return decide(seen(state, *pods, snapshot=None, foreign_snapshot="theirs", **fields), SETTINGS, NOW)


def test_it_goes_and_nothing_is_made_meanwhile() -> None:
    """Whether the round runs or begins; the status and one Event say so, and a pass comes again for one that stays."""
    plan = _plan(begun(), pod(), pod("0-1", phase="Failed"))
    again = _plan(plan.state, pod(), pod("0-1", phase="Failed"))
    first = _plan(None)

    assert (plan.steps, again.steps) == ((GOES,), (GOES,))
    assert (plan.state.phase, plan.state.reason) == (Phase.RUNNING, "NameConflict")
    assert [event.message for event in plan.events] == [plan.state.message]
    assert again.events == ()
    assert again.requeue_after_seconds == 15.0
    assert (first.state.round, first.steps) == (0, ())
    assert _plan(first.state).steps == (GOES,)
    later = _plan(begun(Phase.PENDING, round=3, pods={}))
    assert later.steps == (replace(GOES, name="job-shardwise-3"),)


@pytest.mark.parametrize(
    ("fields", "phase"),
    [
        ({"suspend": True}, Phase.SUSPENDING),
        ({"queueing": evicted()}, Phase.SUSPENDING),
        ({"deadline_seconds": 30.0}, Phase.RUNNING),
    ],
)
def test_a_finalizer_keeps_no_job_from_its_end(fields: dict[str, Any], phase: Phase) -> None:
    """It is suspended, evicted and ended by its deadline as ever."""
    plan = _plan(begun(), pod(), pod("0-1"), **fields)

    assert plan.state.phase == phase
    assert plan.state.stop_asked_at == NOW
    assert GOES not in plan.steps


def test_a_run_that_has_ended_is_complete() -> None:
    """Whatever lies in its snapshot's place."""
    ended = [pod(host, phase="Succeeded", record=record(0)) for host in ("0-0", "0-1")]
    assert _plan(begun(), *ended).state.phase == Phase.COMPLETE
