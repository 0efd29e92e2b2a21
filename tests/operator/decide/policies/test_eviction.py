"""A queue that takes its quota back: the job saves, stops, and waits in another round."""

from typing import Any

import pytest
from tests.operator.building import NOW, SETTINGS, admitted, begun, evicted, plan_pod, pod, record, seen, workload

from shardwise.protocol.pods import PLAN
from shardwise_operator.decide.decide import decide
from shardwise_operator.decide.plan import Delete, RequestStop
from shardwise_operator.decide.policies import eviction
from shardwise_operator.observe.queueing import Queueing
from shardwise_operator.observe.state import Phase, Preflight

LOST = [
    evicted(),
    Queueing(queue="team"),
    Queueing(queue="team", workload=workload(active=False, reserved=True)),
]


def test_a_job_that_has_no_pods_yet_is_left_alone() -> None:
    """While it is planned: that needs no quota. Nor is one asked to save that is suspended already, and resumes."""
    planning = begun(Phase.PENDING, pods={PLAN: "uid-plan-0"}, attempts={PLAN: 0}, preflight=Preflight(of=""))
    resuming = begun(Phase.SUSPENDED, pods={})

    assert eviction.decide(seen(planning, plan_pod(), preflight=True, queueing=Queueing(queue="team")), NOW) is None
    assert eviction.decide(seen(resuming, pod(phase="Failed"), queueing=evicted()), NOW) is None


def test_the_save_has_the_grace_period_and_no_more() -> None:
    """It counts from the first request, which is repeated; then the pods go, and it is said once why."""
    first = decide(seen(begun(), pod(), pod("0-1"), queueing=evicted()), SETTINGS, NOW)
    later = seen(first.state, pod(), pod("0-1"), queueing=evicted())
    again = decide(later, SETTINGS, NOW + later.grace_seconds - 1)
    over = decide(later, SETTINGS, NOW + later.grace_seconds)

    assert first.state.message == "Preempted to accommodate a workload"
    assert (again.steps, again.events) == (first.steps, ())
    assert first.requeue_after_seconds == again.requeue_after_seconds == 2.0
    assert [type(step) for step in over.steps] == [Delete, Delete]


@pytest.mark.parametrize("queueing", LOST, ids=["evicted", "deleted", "deactivated"])
def test_host_0_is_asked_to_save(queueing: Queueing) -> None:
    """No pod is deleted while the save may be under way; nothing is charged."""
    plan = decide(seen(begun(), pod(), pod("0-1"), queueing=queueing), SETTINGS, NOW)

    assert plan.steps == (RequestStop("10.0.0.1"),)
    assert (plan.state.phase, plan.state.reason) == (Phase.SUSPENDING, "Evicted")
    assert plan.state.losses == {}
    assert [event.reason for event in plan.events] == ["Evicted"]


def test_a_pod_that_the_status_does_not_have_yet_counts() -> None:
    """It was made a moment ago, and holds what the queue wants back; the status says that the Workload is gone."""
    plan = eviction.decide(seen(begun(Phase.PENDING, pods={}), pod(), queueing=Queueing(queue="team")), NOW)

    assert plan is not None
    assert (plan.state.phase, plan.state.message) == (Phase.SUSPENDING, "its Workload is gone")


def test_no_save_is_told_where_host_0_does_not_run() -> None:
    """Its pods were still on their way when the quota was taken back."""
    plan = eviction.decide(seen(begun(Phase.PENDING), pod(phase="Pending"), pod("0-1"), queueing=evicted()), NOW)

    assert plan is not None
    assert "nothing is saved, as host 0 does not run, then waits in its queue again" in plan.events[0].message


def test_a_job_that_is_admitted_is_left_alone() -> None:
    """Also one whose flavor is not known yet, which keeps only new pods from being made."""
    unknown = Queueing(queue="team", workload=workload(admitted=True), problem="ResourceFlavor x is not there")

    for queueing in (admitted(), unknown, None):
        assert eviction.decide(seen(begun(), pod(), pod("0-1"), queueing=queueing), NOW) is None


def test_it_waits_in_another_round_when_all_have_ended() -> None:
    """The run's record of its save is not an outcome; the clocks of the round begin anew."""
    saved = record(80, step=37, checkpoint_step=37, message="saved and stopped")
    ended: list[Any] = [pod(key, phase="Failed", exit_code=80, record=saved) for key in ("0-0", "0-1")]
    state = begun(Phase.SUSPENDING, stop_asked_at=NOW - 10, reason="Evicted")

    plan = decide(seen(state, *ended, queueing=evicted()), SETTINGS, NOW)

    assert (plan.state.phase, plan.state.reason, plan.state.round) == (Phase.PENDING, "Evicted", 1)
    assert plan.state.message == "Preempted to accommodate a workload"
    assert plan.state.pods == {}
    assert (plan.state.ran_at, plan.state.stop_asked_at, plan.state.started_at) == (None, None, NOW)
    assert plan.state.attempts == {"0-0": 1, "0-1": 1}
    left = pod("0-1", deleting_at=NOW - 31)
    assert "job-0-1-0 on node-0-1" in decide(seen(state, left, queueing=evicted()), SETTINGS, NOW).state.message


def test_a_run_that_completes_meanwhile_is_complete() -> None:
    """Nothing is left to queue for."""
    done = [pod(key, phase="Succeeded", exit_code=0, record=record(0)) for key in ("0-0", "0-1")]

    plan = decide(seen(begun(Phase.SUSPENDING, stop_asked_at=NOW - 1), *done, queueing=evicted()), SETTINGS, NOW)

    assert plan.state.phase == Phase.COMPLETE


def test_a_suspend_goes_before() -> None:
    """A job that is to rest does not queue."""
    ended = [pod(key, phase="Failed") for key in ("0-0", "0-1")]

    plan = decide(
        seen(begun(Phase.SUSPENDING, stop_asked_at=NOW - 1), *ended, queueing=evicted(), suspend=True), SETTINGS, NOW
    )

    assert plan.state.phase == Phase.SUSPENDED
