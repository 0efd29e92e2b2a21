"""Suspend: a save is asked for, waited for within the grace period, and then the pods go."""

from typing import Any

from tests.operator.building import NOW, begun, pod, seen

from shardwise_operator.decide.plan import Delete, RequestStop
from shardwise_operator.decide.policies import suspension
from shardwise_operator.observe.state import Phase
from shardwise_operator.reasons import FALSE, READY, SAVING, SUSPEND_ASKED, SUSPENDED, TRUE
from shardwise_operator.runtime.kinds import PODS

ASKED: dict[str, Any] = {"stop_asked_at": NOW - 10}


def test_nobody_asks() -> None:
    """A job that is to run is left alone."""
    assert suspension.decide(seen(begun(), pod(), pod("0-1")), NOW) is None


def test_host_0_is_asked_first() -> None:
    """No pod is deleted while the save may be under way."""
    plan = suspension.decide(seen(begun(), pod(), pod("0-1"), suspend=True), NOW)

    assert plan is not None
    assert plan.state.phase == Phase.SUSPENDING
    assert plan.state.stop_asked_at == NOW
    assert plan.steps == (RequestStop("10.0.0.1"),)
    assert plan.requeue_after_seconds is not None


def test_no_save_is_told_where_nobody_can_be_asked_for_one() -> None:
    """Host 0 is not there yet, so no step is taken that could be saved."""
    runs = suspension.decide(seen(begun(), pod(), pod("0-1"), suspend=True), NOW)
    waits = suspension.decide(seen(begun(Phase.PENDING), pod(phase="Pending"), pod("0-1"), suspend=True), NOW)

    assert runs is not None
    assert waits is not None
    assert runs.events[0].message == "the job saves, then its pods go"
    assert waits.events[0].message == "nothing is saved, as host 0 does not run, then its pods go"


def test_how_far_it_is_is_told() -> None:
    """Each step once, in the status, the condition and an event, whatever the job said before."""
    state = begun(reason="Backoff", message="of before").with_condition(READY, TRUE, "Running", "", now=NOW - 60)
    asked = suspension.decide(seen(state, pod(), pod("0-1"), suspend=True), NOW)
    assert asked is not None
    again = suspension.decide(seen(asked.state, pod(), pod("0-1"), suspend=True), NOW + 1)
    over = suspension.decide(seen(asked.state, suspend=True), NOW + 2)
    assert again is not None
    assert over is not None
    suspended, ready = over.state.condition(SUSPENDED), over.state.condition(READY)

    assert (asked.state.reason, asked.state.message) == (SAVING, "")
    assert [(each.status, each.reason) for each in asked.state.conditions if each.type == SUSPENDED] == [
        (FALSE, SAVING)
    ]
    assert (again.state, again.steps, again.events) == (asked.state, asked.steps, ())
    assert (over.state.reason, over.state.message) == (SUSPEND_ASKED, "")
    assert suspended is not None
    assert (suspended.status, suspended.since) == (TRUE, NOW + 2)
    assert ready is not None
    assert ready.status == FALSE
    assert [event.reason for plan in (asked, over) for event in plan.events] == [SUSPEND_ASKED, SUSPENDED]


def test_patience_has_an_end() -> None:
    """After the grace period the pods are deleted, which asks once more, by SIGTERM."""
    state = begun(Phase.SUSPENDING, stop_asked_at=NOW - 121)

    plan = suspension.decide(seen(state, pod(), pod("0-1"), suspend=True), NOW)

    assert plan is not None
    assert plan.steps == (Delete(PODS, "job-0-0-0", "uid-0-0-0"), Delete(PODS, "job-0-1-0", "uid-0-1-0"))


def test_nobody_to_ask() -> None:
    """Pods that wait for a node have nothing to save."""
    pending = [pod(key, phase="Pending", node=None, address=None) for key in ("0-0", "0-1")]

    plan = suspension.decide(seen(begun(), *pending, suspend=True), NOW)

    assert plan is not None
    assert [type(step) for step in plan.steps] == [Delete, Delete]


def test_suspended_when_all_have_ended() -> None:
    """Then the pods go, and the status says so."""
    ended = [pod(key, phase="Failed") for key in ("0-0", "0-1")]

    plan = suspension.decide(seen(begun(Phase.SUSPENDING, **ASKED), *ended, suspend=True), NOW)

    assert plan is not None
    assert plan.state.phase == Phase.SUSPENDED
    assert plan.state.pods == {}
    assert plan.state.stop_asked_at is None
    assert [type(step) for step in plan.steps] == [Delete, Delete]


def test_a_silent_node_does_not_hold_it_up() -> None:
    """Nobody can say when a pod there ends."""
    lost = pod("0-1", deleting_at=NOW)

    plan = suspension.decide(
        seen(begun(Phase.SUSPENDING, **ASKED), lost, suspend=True, silent_nodes=frozenset({"node-0-1"})), NOW
    )

    assert plan is not None
    assert (plan.state.phase, plan.state.message) == (Phase.SUSPENDED, "")


def test_a_pod_that_cannot_be_ended_does_not_hold_it_up() -> None:
    """Half a minute after it was to be gone, all of it that can be killed has been; the status names it."""
    state = begun(Phase.SUSPENDING, **ASKED)

    early = suspension.decide(seen(state, pod("0-1", deleting_at=NOW - 29), suspend=True), NOW)
    late = suspension.decide(seen(state, pod("0-1", deleting_at=NOW - 31), suspend=True), NOW)

    assert early is not None
    assert early.state.phase == Phase.SUSPENDING
    assert late is not None
    assert late.state.phase == Phase.SUSPENDED
    assert late.state.message == "still there, for their nodes cannot end them: job-0-1-0 on node-0-1"
    assert late.steps == ()


def test_a_stop_is_not_taken_back() -> None:
    """A job that is resumed while it saves is suspended first."""
    plan = suspension.decide(seen(begun(Phase.SUSPENDING, **ASKED), pod(), pod("0-1")), NOW)

    assert plan is not None
    assert plan.state.phase == Phase.SUSPENDING


def test_suspended_stays_until_it_is_resumed() -> None:
    """Nothing is done; a resume is the rounds' to see."""
    state = begun(Phase.SUSPENDED, pods={})

    staying = suspension.decide(seen(state, suspend=True), NOW)

    assert staying is not None
    assert staying.steps == ()
    assert suspension.decide(seen(state), NOW) is None


def test_a_pod_that_comes_late_does_not_stay() -> None:
    """The API server may make one after the pass that asked for it has failed: a suspended job holds nothing."""
    late, leaving = pod(), pod("0-1", deleting_at=NOW)
    plan = suspension.decide(seen(begun(Phase.SUSPENDED, pods={}), late, leaving, suspend=True), NOW)

    assert plan is not None
    assert plan.steps == (Delete(PODS, late.name, late.uid),)


def test_of_many_pods_that_cannot_be_ended_the_first_are_named() -> None:
    """With their number."""
    left = [pod(f"0-{number}", deleting_at=NOW - 31) for number in range(1000)]

    plan = suspension.decide(seen(begun(Phase.SUSPENDING, **ASKED), *left, suspend=True), NOW)

    assert plan is not None
    assert plan.state.message.endswith("job-0-2-0 on node-0-2, job-0-3-0 on node-0-3, ... (1000 in all)")
