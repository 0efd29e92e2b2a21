"""Quota that is held and not used: after startWithin it goes back with the hosts, and the job queues behind others."""

from dataclasses import replace
from typing import Any

from tests.operator.building import NOW, SETTINGS, admitted, begun, manifest, pod, seen, snapshot

from shardwise_operator.decide.decide import decide
from shardwise_operator.decide.plan import Create, Delete, Plan
from shardwise_operator.decide.policies import not_started
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.priority import Priority
from shardwise_operator.observe.queueing import Queueing
from shardwise_operator.observe.state import Loss, Phase
from shardwise_operator.reasons import ADMITTED, Lost
from shardwise_operator.runtime.kinds import PODS, WORKLOADS

WITHIN = 1800.0
LOST = pod("0-1", phase="Pending", node=None, address=None, unschedulable="no node fits")
NOWHERE = replace(LOST, key="0-0", name="job-0-0-0", uid="uid-0-0-0")
OVERDUE = admitted(admitted_at=NOW - WITHIN - 1)


def _plan(observed: Observed, now: float = NOW) -> Plan:
    return decide(observed, SETTINGS, now)


def _held(**fields: Any) -> Observed:
    """A job whose time with its quota is up, and that has found no node."""
    return seen(fields.pop("state", begun(Phase.PENDING)), NOWHERE, LOST, **{"queueing": OVERDUE, **fields})


def _given_back() -> Plan:
    return _plan(_held())


def _waiting(plan: Plan, queueing: Queueing, *pods: Any) -> Observed:
    return seen(plan.state, *pods, queueing=queueing, snapshot=None)


def test_a_job_that_holds_quota_says_since_when_and_until_when() -> None:
    """In its message beside the scheduler's, and in the condition, which has a reason of its own; one that runs not."""
    held = _plan(seen(begun(Phase.PENDING), NOWHERE, LOST, queueing=admitted())).state
    runs = _plan(seen(begun(Phase.PENDING), pod(), pod("0-1"), queueing=admitted())).state
    condition, then = held.condition(ADMITTED), runs.condition(ADMITTED)

    assert (held.reason, condition is not None and condition.reason) == ("Unschedulable", "NotStarted")
    assert "no node fits; quota is held since 2027-01-15T07:59:00Z, and unless all pods run" in held.message
    assert "given back at 2027-01-15T08:29:00Z (recovery.startWithin)" in held.message
    assert then is not None
    assert (then.reason, then.message) == ("Admitted", "by ClusterQueue cluster")


def test_the_clock_is_that_of_the_admission() -> None:
    """No pod needs a node for it, and one that has one does not begin it again."""
    early = seen(begun(Phase.PENDING), NOWHERE, LOST, queueing=admitted())
    placed = seen(begun(Phase.PENDING), pod(placed_at=NOW), LOST, queueing=OVERDUE)

    assert not_started.wake(early, NOW) == WITHIN - 60
    assert not_started.decide(early, NOW) is None
    assert _plan(placed).state.reason == "NotStarted"
    assert not_started.wake(seen(begun(Phase.PENDING), NOWHERE, LOST), NOW) is None


def test_what_runs_keeps_its_quota() -> None:
    """Whatever it has lost since is the leader's to wait for."""
    running = seen(begun(Phase.PENDING), pod(), pod("0-1"), queueing=OVERDUE)
    recovering = seen(begun(Phase.RECOVERING, not_before=NOW - WITHIN - 1), pod(), LOST, queueing=OVERDUE)

    assert not_started.decide(running, NOW) is None
    assert not_started.decide(recovering, NOW) is None


def test_a_run_that_has_lost_all_its_hosts_gives_its_quota_back() -> None:
    """No leader is left that could give up; the time counts from the last loss, or from the next try after it."""
    early, late = NOW - WITHIN + 60, NOW - WITHIN - 1
    lost = {at: {"0": Loss(at, frozenset({0, 1}))} for at in (early, late)}

    def plan(**fields: Any) -> Plan:
        return _plan(seen(begun(Phase.RECOVERING, **fields), NOWHERE, LOST, queueing=OVERDUE))

    for given_back in (plan(not_before=late), plan(last_loss=lost[late]), plan(last_loss=lost[late], not_before=late)):
        assert (given_back.state.phase, given_back.state.reason) == (Phase.PENDING, "NotStarted")
        assert given_back.state.round == 1
    for kept in (plan(not_before=early), plan(last_loss=lost[early]), plan(last_loss=lost[late], not_before=early)):
        assert (kept.state.phase, kept.state.round) == (Phase.RECOVERING, 0)
        assert kept.requeue_after_seconds is not None
        assert kept.requeue_after_seconds <= 60


def test_hosts_and_quota_go_back_and_no_budget_pays() -> None:
    """In another round, after a wait; the event says it once."""
    plan = _given_back()

    assert (plan.state.phase, plan.state.reason, plan.state.round) == (Phase.PENDING, "NotStarted", 1)
    assert "0 of 2 pods ran within startWithin, counted from the admission" in plan.state.message
    assert plan.state.not_before is not None
    assert plan.state.not_before > NOW
    assert (plan.state.attempts, plan.state.pods) == ({"0-0": 1, "0-1": 1}, {})
    assert (plan.state.charged, plan.state.losses) == ({}, {})
    assert [event.reason for event in plan.events] == ["NotStarted"]


def test_the_next_round_begins_anew() -> None:
    """With its own snapshot and image, and its own time: one that has trained before has its deadline again."""
    state = _plan(_held(state=begun(Phase.PENDING, sealed_round=0, image="old", ran_at=None))).state
    ran = begun(Phase.PENDING, image="old", ran_at=NOW - 9000, not_before=NOW - WITHIN - 1)
    again = _plan(_held(state=ran)).state

    for each in (state, again):
        assert (each.round, each.sealed_round, each.image) == (1, 1, "")
        assert (each.started_at, each.ran_at) == (NOW, None)


def test_the_quota_goes_when_the_last_pod_has_ended() -> None:
    """Another job's pods would not find the room before; no pod is made in between."""
    given = _given_back()
    there = _plan(_waiting(given, OVERDUE, NOWHERE, replace(LOST, deleting_at=NOW + 30)))
    gone = _plan(_waiting(given, OVERDUE))

    assert there.steps == (Delete(PODS, "job-0-0-0", "uid-0-0-0"),)
    assert there.requeue_after_seconds == 31.0
    assert gone.steps == (Delete(WORKLOADS, "job-shardwise-11111111", "uid-workload"),)
    assert there.events + gone.events == ()
    assert there.state == gone.state == given.state


def test_it_queues_anew_after_its_wait() -> None:
    """Behind who is there by then: until then the reason stays."""
    given = _given_back()
    assert given.state.not_before is not None
    observed = _waiting(given, Queueing(queue="team", priority=Priority()))
    early, late = _plan(observed), _plan(observed, given.state.not_before)

    def made(plan: Plan) -> list[str]:
        return [each.kind.kind for each in plan.steps if isinstance(each, Create) and each.kind in (PODS, WORKLOADS)]

    assert (made(early), early.state.reason, early.state.message) == ([], "NotStarted", given.state.message)
    assert early.requeue_after_seconds == given.state.not_before - NOW
    assert (made(late), late.state.reason) == (["Workload"], "Queued")


def test_a_run_whose_hosts_were_given_back_has_its_time_from_the_next_try() -> None:
    """It was admitted long ago, and trained since."""
    state = begun(Phase.PENDING, ran_at=NOW - 9000, not_before=NOW - 100)

    assert not_started.wake(seen(state, NOWHERE, LOST, queueing=OVERDUE), NOW) == WITHIN - 100


def test_an_image_that_cannot_be_had_is_charged_across_the_rounds() -> None:
    """Else a job with a wrong image would queue for ever."""
    made_of = snapshot(manifest(recovery={"restarts": {"image": 1}}))
    stuck = pod("0-1", phase="Pending", address=None, waiting="ImagePullBackOff", waiting_message="not found")
    first = _plan(seen(begun(Phase.PENDING), pod(), stuck, queueing=OVERDUE, made_of=made_of))
    again = replace(first.state, reason="ImagePull", pods={host: f"uid-{host}-1" for host in ("0-0", "0-1")})
    later = [replace(each, uid=f"uid-{each.key}-1", attempt=1, round=1) for each in (pod(), stuck)]
    second = _plan(seen(again, *later, queueing=OVERDUE, made_of=made_of))

    assert first.state.charged == {Lost.IMAGE: 1}
    assert (second.state.phase, second.state.reason) == (Phase.FAILED, "NotStarted")
