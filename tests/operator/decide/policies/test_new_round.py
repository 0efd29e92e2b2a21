"""Rounds: begun where the job goes with its class, each with names that no pod has had."""

from dataclasses import replace
from typing import Any

from tests.operator.building import NOW, SETTINGS, admitted, begun, manifest, pod, record, seen, snapshot, workload

from shardwise.protocol.contract import ExitCode
from shardwise.protocol.job_status import MAX_HOSTS, MAX_NUMBERED
from shardwise.protocol.pods import PLAN
from shardwise_operator.decide.decide import decide
from shardwise_operator.decide.plan import Create, Delete
from shardwise_operator.decide.policies import new_round
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.queueing import Queueing
from shardwise_operator.observe.snapshot import Snapshot
from shardwise_operator.observe.state import Phase, State
from shardwise_operator.reasons import (
    DEADLINE,
    FALSE,
    INVALID,
    PODS_RELEASED,
    QUEUED,
    READY,
    RESUMED,
    STALLED,
    SUSPEND_ASKED,
    SUSPENDED,
    TRUE,
    Lost,
)
from shardwise_operator.runtime.kinds import CONFIG_MAPS, PODS, WORKLOADS


def test_the_first_round() -> None:
    """The status says that it has begun before anything is made."""
    plan = new_round.decide(seen(), NOW)

    assert plan is not None
    assert plan.state.round == 0
    assert plan.state.attempts == {"0-0": 0, "0-1": 0}
    assert plan.state.started_at == NOW
    assert (plan.steps, plan.events) == ((), ())


def test_a_round_that_runs_goes_on() -> None:
    """It is not begun again."""
    assert new_round.decide(seen(begun(), pod(), pod("0-1")), NOW) is None


def test_a_round_that_has_lost_its_snapshot_and_its_class_goes_on() -> None:
    """Nothing can be made of it any more, and what runs is left alone: the status says why, and keeps its phase."""
    observed = seen(begun(), pod(), pod("0-1", phase="Failed"), snapshot=None, desired=None, problem="no such class")

    plan = decide(observed, SETTINGS, NOW)

    assert (plan.state.phase, plan.state.reason, plan.state.message) == (Phase.RUNNING, INVALID, "no such class")
    assert plan.steps == ()
    assert decide(replace(observed, foreign_snapshot="uid"), SETTINGS, NOW).steps == ()


def test_a_resume_is_a_new_round() -> None:
    """With new names, its own budgets and its own deadline; hosts of another topology too."""
    state = begun(Phase.SUSPENDED, pods={}, charged={"eviction": 3}, losses={"eviction": 3})
    made_of = snapshot(manifest(hardware={"accelerator": "cpu-sim", "topology": "4x2"}))

    plan = new_round.decide(seen(state, made_of=made_of), NOW)

    assert plan is not None
    assert plan.state.round == 1
    assert plan.state.attempts == {"0-0": 1, "0-1": 1, "0-2": 0, "0-3": 0}
    assert (plan.state.charged, plan.state.losses) == ({}, {"eviction": 3})
    assert plan.state.started_at == NOW


def test_a_resume_with_other_hosts_has_room_in_the_status() -> None:
    """The status numbers the hosts of one round and no more; a host that comes back later has a new name."""
    many = _of_a_program(slices=1024, topology="4x2")
    few = tuple(f"{slice_}-{host}" for slice_ in range(64) for host in range(64))
    assert len(few) == len(many.hosts) == MAX_HOSTS
    state = begun(Phase.SUSPENDED, hosts=few, pods={}, attempts={**dict.fromkeys(few, 2), "0-63": 7, PLAN: 1})

    plan = new_round.decide(seen(state, made_of=many), NOW)

    assert plan is not None
    assert len(plan.state.attempts) == MAX_NUMBERED
    assert plan.state.attempts == {**dict.fromkeys(many.hosts, 8), PLAN: 1}

    back = replace(plan.state, phase=Phase.SUSPENDED, attempts={**plan.state.attempts, "0-0": 9})
    fewer = _of_a_program(slices=8, topology="8x2")
    plan = new_round.decide(seen(back, made_of=fewer), NOW)

    assert plan is not None
    assert len(plan.state.attempts) <= MAX_NUMBERED
    assert all(plan.state.attempts[host] > 7 for host in fewer.hosts)


def test_a_resume_is_told() -> None:
    """The job is suspended no more and not ready yet, and what else is known of it is known since when it was."""
    state = begun(Phase.SUSPENDED, pods={}).with_condition(SUSPENDED, TRUE, SUSPEND_ASKED, "", now=NOW - 30)
    state = state.with_condition(STALLED, FALSE, SUSPEND_ASKED, "", now=NOW - 30)

    plan = new_round.decide(seen(state), NOW)

    assert plan is not None
    assert plan.state.reason == RESUMED
    assert [(event.reason, event.message) for event in plan.events] == [(RESUMED, "round 1")]
    told = {each.type: (each.status, each.reason, each.since) for each in plan.state.conditions}
    assert told == {
        SUSPENDED: (FALSE, RESUMED, NOW),
        READY: (FALSE, RESUMED, NOW),
        STALLED: (FALSE, SUSPEND_ASKED, NOW - 30),
    }


def test_each_round_has_its_own_seal() -> None:
    """However it begins: the status says that its snapshot must have one, so no other is taken for it."""
    state = begun(Phase.SUSPENDED, sealed_round=0)
    plans = [
        new_round.decide(seen(), NOW),
        new_round.decide(seen(replace(state, pods={})), NOW),
        new_round.queued_again(seen(state), QUEUED, "", NOW),
        new_round.next_round(seen(state), Lost.HOST_LOST, PODS_RELEASED, "", NOW),
    ]

    assert [(plan.state.round, plan.state.sealed_round) for plan in plans if plan] == [(0, 0), (1, 1), (1, 1), (1, 1)]


def test_a_stop_that_was_asked_for_is_over_with_its_round() -> None:
    """Else the next one would have no time left to save in."""
    state = begun(stop_asked_at=NOW - 600)

    assert new_round.next_round(seen(state), Lost.HOST_LOST, PODS_RELEASED, "", NOW).state.stop_asked_at is None


def test_a_run_that_goes_on_in_another_round() -> None:
    """It recovers, and after a wait it is pending; its image is found again, as the snapshot is another."""
    observed = seen(begun(image="old"))
    at_once, later = (
        new_round.next_round(observed, Lost.HOST_LOST, PODS_RELEASED, "", NOW, wait_seconds=wait).state
        for wait in (0.0, 10.0)
    )

    assert (at_once.phase, later.phase) == (Phase.RECOVERING, Phase.PENDING)
    assert (at_once.not_before, later.not_before) == (NOW, NOW + 10)
    assert at_once.image == later.image == ""


def test_a_round_has_its_own_beginning() -> None:
    """By it the hosts count their time: counted from the first round on, days of training would be a slow start."""
    old = seen(begun(Phase.SUSPENDED, sealed_round=0, started_at=NOW - 500_000))
    plans = [
        new_round.decide(old, NOW),
        new_round.queued_again(old, QUEUED, "", NOW),
        new_round.next_round(old, Lost.HOST_LOST, PODS_RELEASED, "", NOW),
        new_round.next_round(old, Lost.HOST_LOST, PODS_RELEASED, "", NOW, wait_seconds=10.0),
    ]

    assert [plan.state.started_at for plan in plans if plan] == [NOW] * 4


def test_suspended_before_its_first_round() -> None:
    """Nothing begins."""
    plan = new_round.decide(seen(suspend=True), NOW)

    assert plan is not None
    assert (plan.state.phase, plan.state.reason) == (Phase.SUSPENDED, SUSPEND_ASKED)
    assert plan.state.round is None
    condition = plan.state.condition("Suspended")
    assert condition is not None
    assert condition.status == TRUE


def test_a_job_that_does_not_go_with_its_class_waits() -> None:
    """It says why, once, and begins when the class is there."""
    wrong = replace(seen(), desired=None, problem="expected an AcceleratorClass of this cluster")

    plan = new_round.decide(wrong, NOW)

    assert plan is not None
    assert plan.state.round is None
    assert plan.state.phase == Phase.PENDING
    condition = plan.state.condition(READY)
    assert condition is not None
    assert (condition.status, condition.reason) == (FALSE, INVALID)
    assert len(plan.events) == 1
    again = new_round.decide(replace(wrong, state=plan.state), NOW)
    assert again is not None
    assert again.events == ()
    other = new_round.decide(replace(wrong, state=plan.state, problem="expected 1 slice at most"), NOW)
    assert other is not None
    assert [event.message for event in other.events] == ["expected 1 slice at most"]
    healed = new_round.decide(seen(State()), NOW)
    assert healed is not None
    assert healed.state.round == 0


def _without_class(*pods: Pod, **fields: Any) -> Observed:
    """A job in its second round, which began by itself, when its class has just changed."""
    state = begun(Phase.PENDING, round=1, attempts={"0-0": 1, "0-1": 1}, pods={}, ran_at=NOW - 60)
    return replace(seen(state, *pods, **fields), desired=None, snapshot=None, problem="expected 1 slice at most")


def test_a_later_round_that_its_class_no_longer_accepts_waits() -> None:
    """It says so, once, holds neither earlier pods nor quota, and goes on when the class accepts it again."""
    queued = Queueing(queue="", workload=workload())
    earlier = _without_class(pod(phase="Failed"), queueing=queued)

    plan = decide(earlier, SETTINGS, NOW)

    assert (plan.state.round, plan.state.phase) == (1, Phase.PENDING)
    assert (plan.state.reason, plan.state.message) == (INVALID, "expected 1 slice at most")
    assert [event.reason for event in plan.events] == [INVALID]
    assert plan.steps == (
        Delete(PODS, "job-0-0-0", "uid-0-0-0"),
        Delete(WORKLOADS, "job-shardwise-11111111", "uid-workload"),
    )
    again = decide(replace(earlier, state=plan.state, pods=(), queueing=None), SETTINGS, NOW)
    assert (again.events, again.steps) == ((), ())
    healed = decide(seen(plan.state), SETTINGS, NOW)
    assert {step.kind for step in healed.steps if isinstance(step, Create)} >= {CONFIG_MAPS, PODS}


def test_hosts_that_a_class_has_added_are_numbered() -> None:
    """A round that began by itself is made of its class as it is now, so it may have hosts that no round had before."""
    more = snapshot(manifest(hardware={"accelerator": "cpu-sim", "topology": "4x2"}))
    ended = pod(phase="Failed", record=record(ExitCode.SAVED)), pod("0-1", phase="Failed")
    waiting = pod(phase="Pending", node=None), pod("0-1", phase="Pending", node=None)
    plans = [
        decide(seen(begun(sealed_round=0), *ended), SETTINGS, NOW),
        new_round.queued_again(seen(begun()), QUEUED, "", NOW),
        decide(seen(begun(Phase.PENDING), *waiting, queueing=admitted(admitted_at=NOW - 9000)), SETTINGS, NOW),
    ]

    for begins in plans:
        assert begins.state.attempts == {"0-0": 1, "0-1": 1}
        state = replace(begins.state, not_before=None)
        numbered = decide(seen(state, made_of=more, snapshot=None), SETTINGS, NOW)
        made = decide(seen(numbered.state, made_of=more, snapshot=None), SETTINGS, NOW)

        assert (numbered.state.attempts, numbered.steps) == ({"0-0": 1, "0-1": 1, "0-2": 0, "0-3": 0}, ())
        names = [step.manifest["metadata"]["name"] for step in made.steps if isinstance(step, Create)]
        assert names[-4:] == ["job-0-0-1", "job-0-1-1", "job-0-2-0", "job-0-3-0"]


def test_quota_stays_while_an_earlier_pod_runs() -> None:
    """It is given back when that has ended, as everywhere."""
    plan = decide(
        _without_class(pod(deleting_at=NOW + 20), queueing=Queueing(queue="", workload=workload())), SETTINGS, NOW
    )

    assert (plan.state.reason, plan.steps) == (INVALID, ())
    assert plan.requeue_after_seconds == 21.0


def test_a_deadline_counts_while_the_class_is_waited_for() -> None:
    """The job fails at it, and is looked at then."""
    waits = decide(_without_class(deadline_seconds=100.0), SETTINGS, NOW)
    passed = decide(_without_class(deadline_seconds=100.0), SETTINGS, NOW + 40)

    assert (waits.state.reason, waits.requeue_after_seconds) == (INVALID, 40.0)
    assert (passed.state.phase, passed.state.reason) == (Phase.FAILED, DEADLINE)


def test_a_round_with_pods_keeps_them_without_its_class() -> None:
    """Its snapshot may be there, and the cache does not show it yet."""
    observed = _without_class(pod(attempt=1, round=1))
    plan = new_round.decide(observed, NOW)

    assert plan is not None
    assert (plan.steps, plan.state.phase) == ((), observed.state.phase)


def _of_a_program(*, slices: int, topology: str) -> Snapshot:
    """Return what a round of an own program is made of, for which any number of hosts will do."""
    job = manifest(hardware={"accelerator": "cpu-sim", "topology": topology, "slices": slices})
    del job["spec"]["training"]
    return snapshot({**job, "spec": {**job["spec"], "program": {"command": ["python", "train.py"]}}})
