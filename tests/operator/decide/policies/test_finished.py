"""Finished jobs: what lingers is ended, and the job goes after its time."""

import pytest
from tests.operator.building import NOW, UID, admitted, begun, pod, seen

from shardwise_operator.decide.plan import Delete, ReplaceStatus
from shardwise_operator.decide.policies import finished
from shardwise_operator.observe.state import Phase
from shardwise_operator.reasons import COMPLETE, EXPIRED, FAILED, TRUE
from shardwise_operator.runtime.kinds import PODS, TRAINING_JOBS, condition_of


def test_a_job_under_way_is_none() -> None:
    """It is left alone."""
    assert finished.decide(seen(begun(), pod()), NOW) is None


def test_it_stays_finished() -> None:
    """Whatever becomes of its pods, also after an operator's restart: no pod is made, and its ended ones are kept."""
    state = begun(Phase.COMPLETE, completed_at=NOW - 3600)

    plan = finished.decide(seen(state, pod(phase="Succeeded")), NOW)

    assert plan is not None
    assert plan.state == state
    assert plan.steps == ()
    assert plan.requeue_after_seconds is None


def test_an_agent_that_does_not_end_is_ended() -> None:
    """After half a minute."""
    state = begun(Phase.FAILED, completed_at=NOW - 10)

    waiting = finished.decide(seen(state, pod()), NOW)
    ending = finished.decide(seen(state, pod()), NOW + 20)

    assert waiting is not None
    assert waiting.steps == ()
    assert waiting.requeue_after_seconds == 20.0
    assert ending is not None
    assert ending.steps == (Delete(PODS, "job-0-0-0", "uid-0-0-0"),)


def test_it_goes_after_its_time() -> None:
    """And not before."""
    state = begun(Phase.COMPLETE, completed_at=NOW - 10)

    early = finished.decide(seen(state, ttl_seconds=60.0), NOW)
    late = finished.decide(seen(state, ttl_seconds=60.0), NOW + 50)

    assert early is not None
    assert early.requeue_after_seconds == 50.0
    assert late is not None
    assert late.steps == (Delete(TRAINING_JOBS, "job", UID),)
    assert [event.reason for event in late.events] == [EXPIRED]


@pytest.mark.parametrize(
    ("phase", "kind", "reason"), [(Phase.COMPLETE, COMPLETE, "Succeeded"), (Phase.FAILED, FAILED, "Failed")]
)
def test_its_queue_is_told_how_it_ended(phase: Phase, kind: str, reason: str) -> None:
    """In the job's own words."""
    state = begun(phase, completed_at=NOW - 1).with_condition(kind, TRUE, "Reason", "as it ended", now=NOW - 1)

    plan = finished.decide(seen(state, queueing=admitted()), NOW)

    assert plan is not None
    (step,) = plan.steps
    assert isinstance(step, ReplaceStatus)
    told = condition_of(dict(step.obj), "Finished")
    assert (told["reason"], told["message"]) == (reason, "as it ended")


def test_a_pod_that_cannot_be_ended_does_not_keep_the_quota() -> None:
    """Half a minute after it was to be gone it is over, as for a suspend, and a pass comes then."""
    state = begun(Phase.COMPLETE, completed_at=NOW - 3600)
    pods = (pod(phase="Succeeded"), pod("0-1", deleting_at=NOW - 20))

    early = finished.decide(seen(state, *pods, queueing=admitted()), NOW)
    late = finished.decide(seen(state, *pods, queueing=admitted()), NOW + 10)
    told = finished.decide(seen(state, *pods, queueing=admitted(finished=True)), NOW)

    assert early is not None
    assert (early.steps, early.requeue_after_seconds) == ((), 10.0)
    assert late is not None
    (step,) = late.steps
    assert isinstance(step, ReplaceStatus)
    assert [each["type"] for each in step.obj["status"]["conditions"]] == ["Finished"]
    assert late.requeue_after_seconds is None
    assert told is not None
    assert (told.steps, told.requeue_after_seconds) == ((), None)
