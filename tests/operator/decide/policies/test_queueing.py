"""A job in a queue: its Workload is made once, its pods wait for it, and it is told how the job stands."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import NOW, SETTINGS, admitted, begun, evicted, pod, seen, workload

from shardwise_operator.decide.decide import decide
from shardwise_operator.decide.phase import with_phase
from shardwise_operator.decide.plan import Create, Delete, Patch, Plan, ReplaceStatus, Step
from shardwise_operator.decide.policies.queueing import QueuePolicy
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.priority import Priority
from shardwise_operator.observe.queueing import Queueing
from shardwise_operator.observe.state import Phase, Preflight, State
from shardwise_operator.observe.state_fields import read_state
from shardwise_operator.reasons import ADMITTED
from shardwise_operator.render.workload import shape
from shardwise_operator.runtime.kinds import PODS, WORKLOADS, condition_of
from shardwise_operator.write.apply import Outcome
from shardwise_operator.write.status import compose

BOOSTING = replace(SETTINGS, kueue=True, kueue_priority_boost=True)
NEW = Queueing(queue="team", priority=Priority())


def _plan(observed: Observed) -> Plan:
    return decide(observed, BOOSTING, NOW)


def _made(plan: Plan) -> list[str]:
    return [step.kind.kind for step in plan.steps if isinstance(step, Create) and step.kind in (PODS, WORKLOADS)]


def _why_ready_or_not(steps: Iterable[Step]) -> list[str]:
    written = [step.obj for step in steps if isinstance(step, ReplaceStatus)]
    return [condition_of(dict(each), "PodsReady")["reason"] for each in written]


def _waiting(queueing: Queueing, **fields: Any) -> Observed:
    return seen(begun(Phase.PENDING, pods={}), queueing=queueing, **fields)


def test_a_job_enters_its_queue_and_has_no_pod() -> None:
    """The status says so, and that it is not the scheduler who has to be waited for."""
    plan = _plan(_waiting(NEW))

    assert _made(plan) == ["Workload"]
    assert (plan.state.phase, plan.state.reason) == (Phase.PENDING, "Queued")
    assert plan.state.message == "it enters the queue team"


def test_a_job_that_waits_says_what_its_queue_says() -> None:
    """And since when: the time of the condition is that of the first look."""
    first = _plan(_waiting(Queueing(queue="team", workload=workload()))).state
    waiting = Queueing(queue="team", workload=workload(waits="insufficient quota for cpu"))
    later = decide(seen(first, queueing=waiting), SETTINGS, NOW + 60)

    condition = later.state.condition(ADMITTED)
    assert _made(later) == []
    assert first.message == "in the queue team"
    assert later.state.message == "insufficient quota for cpu"
    assert condition is not None
    assert (condition.status, condition.since) == ("False", NOW)


def test_an_admitted_job_has_all_its_pods() -> None:
    """Made in one pass; since when it is admitted is the queue's own time."""
    plan = _plan(_waiting(admitted()))
    condition = plan.state.condition(ADMITTED)

    assert _made(plan) == ["Pod", "Pod"]
    assert condition is not None
    assert (condition.status, condition.since) == ("True", NOW - 60)
    assert condition.message.startswith("by ClusterQueue cluster")


def test_a_job_whose_plan_does_not_fit_takes_no_place_in_the_queue() -> None:
    """Its plan comes first, and needs no quota."""
    plan = _plan(seen(State(), queueing=NEW, preflight=True))
    planned = _plan(seen(plan.state, queueing=NEW, preflight=True))

    assert _made(planned) == ["Pod"]


def test_a_replaced_pod_does_not_queue() -> None:
    """Another one is made at once, of the same Workload."""
    state = begun(attempts={"0-0": 0, "0-1": 1}, pods={"0-0": "uid-0-0-0"})

    plan = _plan(seen(state, pod(), pod("0-1", phase="Failed", exit_code=1), queueing=admitted(pods_ready=True)))

    assert _made(plan) == ["Pod"]


def test_quota_is_given_back_when_all_pods_have_ended() -> None:
    """Not before: another job's pods would not find the room that they were admitted to."""
    old: dict[str, Any] = {"round": 0, "attempt": 0}
    state = begun(Phase.PENDING, round=1, pods={}, attempts={"0-0": 1, "0-1": 1})
    ending, over = pod("0-1", deleting_at=NOW, **old), pod("0-1", phase="Failed", **old)

    early, late = (_plan(seen(state, each, queueing=evicted())) for each in (ending, over))

    assert not any(isinstance(step, ReplaceStatus) for step in early.steps)
    (told,) = [step.obj for step in late.steps if isinstance(step, ReplaceStatus)]
    assert condition_of(dict(told), "QuotaReserved")["status"] == "False"
    assert _made(late) == []


def test_what_has_no_quota_gives_none_back() -> None:
    """Kueue keeps the mark of an eviction until the job is admitted again."""
    plan = _plan(_waiting(evicted(reserved=False, waits="insufficient quota")))

    assert not any(isinstance(step, ReplaceStatus) for step in plan.steps)
    assert plan.state.reason == "Evicted"
    assert plan.state.message == "Preempted to accommodate a workload; insufficient quota"


def test_a_job_queues_once_its_last_pod_has_ended() -> None:
    """Else it could be admitted while the room is still taken, by itself."""
    state = begun(Phase.PENDING, round=1, pods={}, attempts={"0-0": 1, "0-1": 1})
    early, late = (_plan(seen(state, each, queueing=NEW)) for each in (pod(deleting_at=NOW), pod(phase="Failed")))

    assert (_made(early), _made(late)) == ([], ["Workload"])


def test_what_is_said_of_a_backoff_does_not_grow() -> None:
    """The message of a pass is the next one's own: said again with what is added, each write would bring the next."""
    why = "host 1 was missing for 600 s; all are given back"
    state = begun(Phase.RECOVERING, pods={}, attempts={"0-0": 1, "0-1": 1}, not_before=NOW + 60, message=why)
    first = _plan(seen(state, queueing=admitted())).state
    second = _plan(seen(first, queueing=admitted())).state

    assert (first.reason, first.message.partition("; quota is held since")[0]) == ("Backoff", why)
    assert "recovery.startWithin" in first.message
    assert second == first
    grown = replace(state, message=f"{first.message}{first.message.removeprefix(why)}")
    assert _plan(seen(grown, queueing=admitted())).state.message == first.message


def test_a_job_that_is_resumed_with_fewer_hosts_queues_once() -> None:
    """A pod of a host that it no longer has, on a silent node, is none to be stopped: it would begin round on round."""
    state = begun(Phase.SUSPENDED, hosts=("0-0", "0-1", "1-0"), pods={})
    left = pod("1-0", deleting_at=NOW - 3600)
    now, queueing, made = NOW, NEW, list[str]()
    for _ in range(6):
        observed = seen(state, left, queueing=queueing)
        plan = decide(observed, SETTINGS, now)
        written = compose(observed, plan, Outcome(), {}, now)
        state, made, now = read_state(written), made + _made(plan), now + 10.0
        queueing = Queueing(queue="team", workload=workload()) if made else NEW

    assert (state.round, made) == (1, ["Workload"])
    assert (state.reason, state.message) == ("Queued", "in the queue team")


@pytest.mark.parametrize("make", [admitted, evicted])
def test_a_job_that_asks_for_something_else_by_now_queues_anew(make: Callable[..., Queueing]) -> None:
    """Its class was changed before this round: the quota is for other pods, whether it still has it or gets it next."""
    observed = _waiting(make(shape="of before"))
    plan, same, unknown = (
        _plan(replace(observed, queueing=make(shape=each))) for each in ("of before", shape(observed), "")
    )

    gone = Delete(WORKLOADS, "job-shardwise-11111111", "uid-workload")
    assert [each for each in plan.steps if not isinstance(each, Create)] == [gone]
    assert _made(plan) == []
    for other in (same, unknown):  # as one that an older release has made
        assert gone not in other.steps
        assert _made(other) == (["Pod", "Pod"] if make is admitted else [])
    assert _made(_plan(_waiting(NEW))) == ["Workload"]


def test_what_runs_keeps_the_workload_that_it_was_admitted_with() -> None:
    """Also while one of its pods is replaced; and what somebody has deactivated does not come back by itself."""
    lost = begun(attempts={"0-0": 0, "0-1": 1}, pods={"0-0": "uid-0-0-0"})
    runs = _plan(seen(begun(), pod(), pod("0-1"), queueing=admitted(shape="of before")))
    replaced = _plan(seen(lost, pod(), pod("0-1", phase="Failed"), queueing=admitted(shape="of before")))
    inactive = _plan(_waiting(evicted(shape="of before", active=False)))

    assert not any(isinstance(step, Delete) for plan in (runs, replaced, inactive) for step in plan.steps)
    assert _made(replaced) == ["Pod"]
    assert any(isinstance(step, ReplaceStatus) for step in inactive.steps)


def test_a_job_that_is_taken_out_of_its_queue_frees_its_quota() -> None:
    """It goes on without one."""
    plan = _plan(seen(begun(), pod(), pod("0-1"), queueing=replace(admitted(), queue="")))

    assert [step for step in plan.steps if not isinstance(step, Create)] == [
        Delete(WORKLOADS, "job-shardwise-11111111", "uid-workload")
    ]
    assert plan.state.phase == Phase.RUNNING


def test_what_keeps_it_from_its_queue_is_said_and_looked_at_again() -> None:
    """No watch tells that it has come."""
    plan = _plan(_waiting(Queueing(queue="team", problem="PriorityClass x is not there")))

    assert (plan.state.reason, plan.state.message) == ("Queued", "PriorityClass x is not there")
    assert plan.requeue_after_seconds == 15.0


def test_quota_that_is_reserved_is_kept() -> None:
    """What the queue still checks before it admits the job is not the job's to end."""
    plan = _plan(_waiting(Queueing(queue="team", workload=workload(reserved=True))))

    assert not any(isinstance(step, ReplaceStatus | Delete) for step in plan.steps)


def test_another_queue_is_told_while_it_may_still_change() -> None:
    """Kueue refuses it once quota is reserved."""
    moved = Queueing(queue="other", workload=workload())
    kept = Queueing(queue="other", workload=workload(reserved=True))

    assert (
        Patch(WORKLOADS, "job-shardwise-11111111", "uid-workload", {"spec": {"queueName": "other"}})
        in _plan(_waiting(moved)).steps
    )
    assert not any(isinstance(step, Patch) for step in _plan(_waiting(kept)).steps)


def test_a_workload_that_counts_as_ended_is_made_anew() -> None:
    """The end of one cannot be taken back, and the job goes on."""
    plan = _plan(_waiting(Queueing(queue="team", workload=workload(finished=True))))

    assert [step.kind for step in plan.steps if isinstance(step, Delete)] == [WORKLOADS]


@pytest.mark.parametrize(("ran_at", "told"), [(NOW - 60, ["True"]), (None, [])])
def test_a_queue_hears_once_that_all_pods_run(ran_at: float | None, told: list[str]) -> None:
    """Some wait for that, and take the quota back if it does not come."""
    steps = _plan(seen(begun(ran_at=ran_at), pod(), pod("0-1"), queueing=admitted())).steps
    again = _plan(seen(begun(), pod(), pod("0-1"), queueing=admitted(pods_ready=True))).steps

    written = [step.obj for step in steps if isinstance(step, ReplaceStatus)]
    assert [condition_of(dict(each), "PodsReady")["status"] for each in written] == told
    assert not any(isinstance(step, ReplaceStatus) for step in again)


@pytest.mark.parametrize(
    ("phase", "lost", "told"),
    [
        (Phase.RUNNING, False, []),
        (Phase.RECOVERING, False, []),  # its trainers are started again, in pods that run
        (Phase.RECOVERING, True, ["WaitForRecovery"]),
        (Phase.SUSPENDING, True, []),
    ],
)
def test_a_queue_hears_that_a_pod_was_lost(*, phase: Phase, lost: bool, told: list[str]) -> None:
    """And that another one runs in its place; of pods that end because the job does it hears nothing."""
    state = begun(phase, ran_at=NOW - 60)
    pods = (pod(), pod("0-1", phase="Pending" if lost else "Running"))
    steps = QueuePolicy(SETTINGS).decide(seen(state, *pods, queueing=admitted(pods_ready=True)), NOW).steps
    again = seen(begun(ran_at=NOW - 60), pod(), pod("0-1"), queueing=admitted(recovers=True))
    later = QueuePolicy(SETTINGS).decide(again, NOW).steps

    assert _why_ready_or_not(steps) == told
    assert _why_ready_or_not(later) == ["Recovered"]


@pytest.mark.parametrize(
    ("age", "boost", "before"),
    [(299, None, None), (300, "1", None), (301, "1", None), (301, None, "1"), (4801, "3", "2"), (1, "0", "3")],
)
def test_a_priority_rises_with_the_work_that_would_be_lost(age: float, boost: str | None, before: str | None) -> None:
    """In few steps, each of which is written once; a save takes it back."""
    state, queueing = begun(ran_at=NOW - 9000), admitted(pods_ready=True, boost=before)
    observed = seen(state, pod(), pod("0-1"), queueing=queueing, saved_at=NOW - age)
    patches = [step.patch for step in QueuePolicy(BOOSTING).decide(observed, NOW).steps if isinstance(step, Patch)]
    quiet = QueuePolicy(SETTINGS).decide(observed, NOW).steps

    written = [each["metadata"]["annotations"]["kueue.x-k8s.io/priority-boost"] for each in patches]
    assert written == ([boost] if boost else [])
    assert quiet == ()


def test_the_next_boost_wakes_the_job() -> None:
    """Nothing else happens to a job that trains."""
    observed = seen(begun(ran_at=NOW - 1000), pod(), pod("0-1"), queueing=admitted(pods_ready=True))

    assert QueuePolicy(BOOSTING).wake(observed, NOW) == 200.0
    assert QueuePolicy(SETTINGS).wake(observed, NOW) is None


@pytest.mark.parametrize("preflight", [None, Preflight(of="plan")], ids=["no plan", "a plan"])
def test_a_round_without_a_queue_is_not_said_to_wait_for_one(preflight: Preflight | None) -> None:
    """What the queue of an earlier round said is gone, or the alert of a job that is pending would pass it over."""
    before = begun(Phase.PENDING, pods={}, preflight=preflight)
    before = before.with_condition(ADMITTED, "False", "Suspended", "", now=NOW - 300)

    assert with_phase(seen(before), NOW).condition(ADMITTED) is None
    assert with_phase(seen(before, queueing=NEW), NOW).condition(ADMITTED) is not None


def test_a_suspended_job_leaves_its_queue_before_it_may_resume() -> None:
    """Else the quota of before the suspend would let it in."""
    state = begun(Phase.SUSPENDED, pods={})

    suspended, resumed = (_plan(seen(state, queueing=admitted(), suspend=suspend)) for suspend in (True, False))

    for plan in (suspended, resumed):
        assert plan.steps == (Delete(WORKLOADS, "job-shardwise-11111111", "uid-workload"),)
        assert plan.state.phase == Phase.SUSPENDED
    assert _plan(seen(state, queueing=NEW)).state.round == 1


@pytest.mark.parametrize("phase", [Phase.COMPLETE, Phase.FAILED])
def test_a_finished_job_frees_its_quota_once(phase: Phase) -> None:
    """When its last pod has ended; a Workload that says so is left alone."""
    state, ended = begun(phase, completed_at=NOW - 1), pod("0-1", phase="Failed")

    steps = _plan(seen(state, ended, queueing=admitted())).steps
    early = _plan(seen(state, ended, pod(), queueing=admitted())).steps
    late = _plan(seen(state, ended, queueing=admitted(finished=True))).steps

    assert [type(step) for step in steps] == [ReplaceStatus]
    assert early == ()
    assert late == ()
