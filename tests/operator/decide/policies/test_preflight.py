"""`spec.preflight: plan`: nothing but the plan's pod is made until it has said that the job fits."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import (
    NOW,
    SETTINGS,
    asking,
    begun,
    classes,
    manifest,
    plan_pod,
    pod,
    seen,
    snapshot,
    verdict,
)

from shardwise_operator.decide.decide import decide
from shardwise_operator.decide.plan import Create, Delete, Plan
from shardwise_operator.decide.policies import preflight
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.pod_defaults import read_pod_defaults
from shardwise_operator.observe.snapshot import take_snapshot
from shardwise_operator.observe.state import Finding, Phase, Preflight, State
from shardwise_operator.observe.state_fields import read_state, write_state
from shardwise_operator.reasons import FITS, NOT_FITTING, PLANNING, PREFLIGHT_FAILED, REPLACED, UNKNOWN
from shardwise_operator.runtime.kinds import PODS

CHANGE = "training.model.remat=full: 1.5 GiB of 2.0 GiB"
DIGEST = snapshot().planned_digest


def _planning(*pods: Pod, state: State | None = None, **fields: Any) -> Observed:
    """A job whose plan is being made, by a pod that the status knows."""
    return seen(state or _begun(), *pods, preflight=True, **fields)


def _begun(**fields: Any) -> State:
    known = Preflight(of=DIGEST)
    filled = {"attempts": {"0-0": 0, "0-1": 0, "plan": 0}, "pods": {"plan": "uid-plan-0"}, "preflight": known}
    state = begun(Phase.PENDING, **{**filled, **fields})
    return state.with_condition(FITS, UNKNOWN, PLANNING, "", now=NOW - 60)


def _ended(words: str = "", **fields: Any) -> Pod:
    return plan_pod(phase="Failed", termination_message=words, **fields)


def _decide(observed: Observed, now: float = NOW) -> Plan:
    return decide(observed, SETTINGS, now)


def _made(plan: Plan) -> list[str]:
    return [step.manifest["metadata"]["name"] for step in plan.steps if isinstance(step, Create) and step.kind == PODS]


def _fits(state: State) -> tuple[str, str, str]:
    condition = state.condition(FITS)
    assert condition is not None
    return condition.status, condition.reason, condition.message


def test_its_pod_is_the_only_one() -> None:
    """The round begins, then the plan's pod is made, and no other, also when it is there; the status says so."""
    first = _decide(seen(preflight=True))
    second = _decide(seen(first.state, preflight=True))
    third = _decide(_planning(plan_pod(), state=replace(second.state, pods={"plan": "uid-plan-0"})))

    assert first.steps == ()
    assert (_made(second), _made(third)) == (["job-plan-0"], [])
    assert (third.state.phase, third.state.reason) == (Phase.PENDING, PLANNING)
    assert _fits(third.state)[:2] == ("Unknown", PLANNING)
    assert not any(isinstance(step, Delete) for step in third.steps)


def test_of_earlier_rounds_no_plan_s_pod_is_kept() -> None:
    """Its log stays as long as its round, as those of the hosts do."""
    state = begun(
        round=1, preflight=Preflight(of=DIGEST, finding=Finding.FITS), attempts={"0-0": 0, "0-1": 0, "plan": 0}
    )
    hosts = pod(round=1), pod("0-1", round=1)
    earlier, own = (_decide(_planning(*hosts, _ended(round=number), state=state)) for number in (0, 1))

    deleted = [[step.name for step in plan.steps if isinstance(step, Delete)] for plan in (earlier, own)]
    assert deleted == [["job-plan-0"], []]


def test_its_pod_goes_where_the_platform_team_sends_all_pods() -> None:
    """Nodes, tolerations and variables for all training pods are its own too; those of the job and class are not."""
    given = {"nodeSelector": {"pool": "ml"}, "tolerations": [{"key": "ml", "operator": "Exists"}], "env": {"A": "b"}}
    job = manifest(preflight="plan", hardware={"accelerator": "tpu-v5e-4t", "topology": "2x4"})
    asking(job, nodeSelector={"pool": "tpu"}, agent={"env": [{"name": "KEY", "value": "own"}]})
    made_of = snapshot(job)
    observed = _planning(made_of=made_of, state=_begun(pods={}, attempts=dict.fromkeys((*made_of.hosts, "plan"), 0)))
    plan = decide(observed, replace(SETTINGS, pod_defaults=read_pod_defaults(json.dumps(given))), NOW)
    (pod,) = (step.manifest for step in plan.steps if isinstance(step, Create) and step.kind == PODS)
    (container,) = pod["spec"]["containers"]

    assert pod["spec"]["nodeSelector"] == {"pool": "ml"}
    assert [each["key"] for each in pod["spec"]["tolerations"]] == [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "ml",
    ]
    assert {"name": "A", "value": "b"} in container["env"]
    assert not [each for each in container["env"] if each["name"] == "KEY"]


def test_without_it_nothing_is_planned() -> None:
    """It is by choice."""
    state = _decide(seen()).state

    assert state.preflight is None
    assert state.condition(FITS) is None
    assert _made(_decide(seen(state))) == ["job-0-0-0", "job-0-1-0"]


def test_a_job_that_fits_starts() -> None:
    """With the figures in its condition; `startWithin` counts from here; the plan's pod stays, with its log."""
    pods = _ended(verdict().dumps())
    judged = _decide(_planning(pods))
    begins = _decide(_planning(pods, state=judged.state))

    assert _fits(judged.state) == ("True", "Fitting", "peak 3.0 GiB a device of 4.0 GiB")
    assert judged.state.not_before == NOW
    assert "plan" not in judged.state.pods
    assert _made(begins) == ["job-0-0-0", "job-0-1-0"]
    assert not any(isinstance(step, Delete) for step in begins.steps)


def test_a_class_that_does_not_say_its_memory_stops_nothing() -> None:
    """The step compiles; whether it fits is open, and the condition says so."""
    judged = _decide(_planning(_ended(verdict(fits=None).dumps())))

    assert _fits(judged.state)[:2] == ("Unknown", "MemoryUnknown")
    assert "does not say" in _fits(judged.state)[2]
    assert _made(_decide(_planning(state=judged.state))) == ["job-0-0-0", "job-0-1-0"]


def test_a_job_that_does_not_fit_waits() -> None:
    """It says the figures and what would help, once as an event, and nothing is made however often it is looked at."""
    pods = _ended(verdict(fits=False, change=CHANGE).dumps())
    judged = _decide(_planning(pods))
    later = _decide(_planning(pods, state=judged.state), NOW + 10_000)

    words = f"peak 3.0 GiB a device of 2.0 GiB; what makes it fit: {CHANGE}"
    assert [(event.type, event.reason, event.message) for event in judged.events] == [("Warning", NOT_FITTING, words)]
    assert _fits(judged.state) == ("False", NOT_FITTING, words)
    assert (later.state.phase, later.state.reason, later.state.message) == (Phase.PENDING, NOT_FITTING, words)
    assert (_made(later), later.events, later.requeue_after_seconds) == ([], (), None)


def test_a_change_is_planned_anew() -> None:
    """Under suspend another mesh, or another memory of its class; what fitted before is not planned twice."""
    other = manifest()
    other["spec"]["training"]["mesh"] = {"tensor": 2}
    larger = {**classes(), "cpu-sim": {**classes()["cpu-sim"], "spec": {**_cpu(), "deviceMemory": "1Gi"}}}
    known = Preflight(of=DIGEST, finding=Finding.FITS)

    for finding, made_of, planned in (
        (Finding.FITS, snapshot(), False),
        (Finding.UNKNOWN, snapshot(), False),
        (Finding.NOT_FITTING, snapshot(), True),
        (Finding.FITS, snapshot(other), True),
        (Finding.FITS, take_snapshot(manifest(), larger, image="localhost/trainer:dev"), True),
        (Finding.FITS, snapshot(manifest(suspend=False, deadline="1h")), False),
    ):
        suspended = begun(Phase.SUSPENDED, pods={}, preflight=replace(known, finding=finding))
        state = _decide(seen(replace(suspended, attempts={"plan": 0}), made_of=made_of, preflight=True)).state

        assert state.planning == planned
        assert state.attempts["plan"] == int(planned)


def _cpu() -> dict[str, Any]:
    return dict(classes()["cpu-sim"]["spec"])


def test_a_restart_is_no_new_plan() -> None:
    """A pod that was lost later is made again at once."""
    state = begun(preflight=Preflight(of=DIGEST, finding=Finding.FITS), pods={"0-0": "uid-0-0-0"})
    state = replace(state, attempts={"0-0": 0, "0-1": 1, "plan": 0})

    assert _made(_decide(_planning(pod(), state=state))) == ["job-0-1-1"]


@pytest.mark.parametrize("pods", [(plan_pod(),), (_ended(verdict(fits=False).dumps()),)], ids=["planned", "judged"])
def test_it_can_be_taken_out(pods: tuple[Pod, ...]) -> None:
    """While the plan is made, and after it: the job starts all the same."""
    state = _decide(_planning(*pods)).state

    freed = decide(replace(_planning(*pods, state=state), preflight=False), SETTINGS, NOW)
    begins = decide(replace(_planning(*pods, state=freed.state), preflight=False), SETTINGS, NOW)

    assert _fits(freed.state)[:2] == ("Unknown", "NotAsked")
    assert _made(begins) == ["job-0-0-0", "job-0-1-0"]
    deleted = [step.name for step in begins.steps if isinstance(step, Delete)]
    assert deleted == [each.name for each in pods if not each.ended]


@pytest.mark.parametrize(
    "lost",
    [
        (),
        (plan_pod(deleting_at=NOW),),
        (_ended(reason="Evicted"),),
        (_ended(disruption="DeletionByTaintManager"),),
        (_ended(reason="OutOfcpu"),),
    ],
    ids=["gone", "deleted", "evicted", "node lost", "not admitted"],
)
def test_a_lost_pod_is_made_again(lost: tuple[Pod, ...]) -> None:
    """Under the next name, after the usual wait, and not for ever: then the job fails, and says why."""
    state = _begun()
    for number in range(1, 6):
        plan = _decide(_planning(*(replace(each, attempt=number - 1) for each in lost), state=state), NOW)
        assert (plan.state.reason, plan.state.attempts["plan"]) == (REPLACED, number)
        assert plan.state.charged == {}
        assert bool(_made(_decide(_planning(state=plan.state), NOW))) == (number == 1)
        made = _decide(_planning(state=plan.state), NOW + 400)
        assert _made(made) == [f"job-plan-{number}"]
        state = replace(made.state, pods={"plan": f"uid-plan-{number}"})

    given_up = _decide(_planning(*(replace(each, attempt=5) for each in lost), state=state), NOW)

    assert (given_up.state.phase, given_up.state.reason) == (Phase.FAILED, PREFLIGHT_FAILED)
    assert "lost its pod 6 times" in given_up.state.message


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ({"exit_reason": "OOMKilled", "exit_code": 137}, "(OOMKilled, exit code 137)"),
        ({"reason": "DeadlineExceeded"}, "(DeadlineExceeded)"),
        (
            {"exit_reason": "Error", "exit_code": 81, "termination_message": "error: XLA cannot compile\n"},
            "(Error, exit code 81):\nerror: XLA cannot compile",
        ),
    ],
)
def test_no_verdict_ends_the_job(ended: dict[str, Any], words: str) -> None:
    """It was asked for, so nothing starts without it; the condition has the plan's last words."""
    plan = _decide(_planning(plan_pod(phase="Failed", **ended)))

    assert (plan.state.phase, plan.state.reason) == (Phase.FAILED, PREFLIGHT_FAILED)
    assert plan.state.message == f"the plan's pod job-plan-0 ended {words}"
    assert _made(plan) == []


def test_a_verdict_counts_however_its_pod_ended() -> None:
    """The search for a change may have run out of memory or time."""
    plan = _decide(_planning(_ended(verdict(fits=False).dumps(), exit_reason="OOMKilled", exit_code=137)))

    assert plan.state.reason == NOT_FITTING


def test_a_pod_that_cannot_run() -> None:
    """The status says what it waits for, and after startWithin the job has failed of it."""
    waiting = plan_pod(phase="Pending", node=None, unschedulable="0/3 nodes are available", unschedulable_since=NOW)
    observed = _planning(waiting)

    soon, late = _decide(observed), _decide(observed, NOW + 1800)

    assert (soon.state.phase, soon.state.reason) == (Phase.PENDING, "Unschedulable")
    assert soon.requeue_after_seconds == pytest.approx(1740)
    assert (late.state.phase, late.state.reason) == (Phase.FAILED, PREFLIGHT_FAILED)
    assert late.state.message.endswith("startWithin: Unschedulable: job-plan-0: 0/3 nodes are available")


def test_a_plan_that_runs_may_take_its_time() -> None:
    """Only until it runs is it waited for with a bound: the compiler may take long."""
    assert preflight.wake(_planning(plan_pod()), NOW) is None
    assert _decide(_planning(plan_pod()), NOW + 3600).state.phase == Phase.PENDING


def test_startwithin_counts_from_the_last_try() -> None:
    """A plan that was replaced late in its time has all of it again."""
    state = _begun(started_at=NOW - 1800, not_before=NOW - 10)
    plan = _decide(_planning(plan_pod(phase="Pending", node=None, created_at=NOW - 10), state=state))

    assert plan.state.phase == Phase.PENDING
    assert plan.requeue_after_seconds == 1790.0


def test_startwithin_counts_from_when_its_pod_is_there() -> None:
    """The quota of the namespace may have been full for longer: the job has not failed once it is free."""
    made = plan_pod(phase="Pending", node=None, created_at=NOW)
    observed = _planning(made, state=_begun(started_at=NOW - 3600))

    plan, late = _decide(observed), _decide(observed, NOW + 1800)

    assert (plan.state.phase, plan.requeue_after_seconds) == (Phase.PENDING, 1800.0)
    assert late.state.reason == PREFLIGHT_FAILED


def test_a_suspend_takes_it_away() -> None:
    """The plan has nothing to save; after the resume it is made anew, under a new name."""
    suspending = _decide(_planning(plan_pod(), suspend=True))
    suspended = _decide(_planning(state=suspending.state, suspend=True))
    resumed = _decide(_planning(state=suspended.state))

    assert [step.name for step in suspending.steps if isinstance(step, Delete)] == ["job-plan-0"]
    assert suspended.state.phase == Phase.SUSPENDED
    assert (resumed.state.planning, resumed.state.attempts["plan"]) == (True, 1)


def test_it_counts_as_no_host() -> None:
    """A plan's pod has no slice, and a class with places looks for none of it."""
    made_of = snapshot(manifest(hardware={"accelerator": "tpu-v5p", "topology": "2x2x4"}))
    state = _begun(attempts={**dict.fromkeys(made_of.hosts, 0), "plan": 0})

    plan = _decide(_planning(plan_pod(), state=state, made_of=made_of))

    assert plan.state.reason == PLANNING
    assert _made(plan) == []


def test_how_it_stands_survives_a_restart() -> None:
    """The status has all that is decided by."""
    for known in (Preflight(of=DIGEST), Preflight(of=DIGEST, lost=2), Preflight(of=DIGEST, finding=Finding.UNKNOWN)):
        state = _begun(preflight=known)

        assert read_state(write_state(state, generation=1)) == state


def test_nothing_is_new_of_a_plan_that_is_made() -> None:
    """The policy is silent while its pod runs."""
    assert preflight.decide(_planning(plan_pod()), NOW) is None
