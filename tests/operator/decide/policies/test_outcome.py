"""The end of a run: what its last records say becomes of the job."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import NOW, SETTINGS, begun, manifest, pod, record, seen, snapshot

from shardwise.protocol.contract import ExitCode
from shardwise_operator.decide.decide import decide
from shardwise_operator.decide.plan import Create, Plan
from shardwise_operator.decide.policies import outcome
from shardwise_operator.observe.state import Growth, Phase
from shardwise_operator.reasons import FALSE, INVALID, PODS_RELEASED, SAVED_UNEXPECTEDLY, TRUE, Lost


def test_complete() -> None:
    """Code 0 of any agent is the run's: all end with the same."""
    state = begun(reason="Running", message="of before")
    plan = outcome.decide(seen(state, pod(), pod("0-1", phase="Succeeded", record=record(0))), NOW)

    assert plan is not None
    assert plan.state.phase == Phase.COMPLETE
    assert plan.state.completed_at == NOW
    assert (plan.state.reason, plan.state.message) == ("Trained", "")
    conditions = {each.type: each.status for each in plan.state.conditions}
    assert conditions == {"Complete": TRUE, "Ready": FALSE}
    assert [(event.reason, event.message) for event in plan.events] == [("Complete", "100 steps")]


def test_host_0_has_the_last_word() -> None:
    """Then the newest pod of another: whom the others heard of it from may have known less."""
    told = [
        pod(host, attempt, phase="Failed", record=record(1, message=f"{host}, {attempt}"))
        for host, attempt in (("0-1", 0), ("0-1", 1), ("0-0", 0))
    ]
    state = begun(attempts={"0-0": 0, "0-1": 1})

    words = [outcome.termination_record(seen(state, *pods)) for pods in (told, told[:2])]

    assert [each.message for each in words if each] == ["0-0, 0", "0-1, 1"]


@pytest.mark.parametrize(
    ("code", "cause", "reason"),
    [
        (1, "failure", "Failure"),
        (1, "hang", "Hang"),
        (1, "hostLost", "HostLost"),
        (1, None, "Failure"),
        (2, None, "BadInput"),
        (81, "badInput", "BadInput"),
        (82, "nonfinite", "NonFinite"),
        (83, "outOfMemory", "OutOfMemory"),
        (84, "storage", "Storage"),
        (85, "device", "Device"),
    ],
)
def test_failed(code: int, cause: str | None, reason: str) -> None:
    """The reason is the cause's word; the message has the rank, the words, and the log's end."""
    last = record(code, cause=cause, rank=3, message="what happened", tail="the end")
    plan = outcome.decide(seen(begun(), pod(phase="Failed", record=last), pod("0-1")), NOW)

    assert plan is not None
    assert plan.state.phase == Phase.FAILED
    assert plan.state.reason == reason
    assert plan.state.message == "what happened (rank 3)\nthe end"
    assert (plan.state.completed_at, plan.state.not_before) == (NOW, None)
    assert {each.type: each.status for each in plan.state.conditions} == {"Failed": TRUE, "Ready": FALSE}
    assert outcome.failure_message(last.model_copy(update={"message": "rank 3 ended", "tail": ""})) == "rank 3 ended"
    assert outcome.failure_message(last.model_copy(update={"rank": None, "tail": ""})) == "what happened"
    assert [event.type for event in plan.events] == ["Warning"]


def test_a_host_that_is_not_back_in_time_ends_no_job() -> None:
    """The others are given back, and all are tried again in a new round, after a wait, at the cost of one hostLost."""
    last = record(ExitCode.HOSTS_MISSING, message="host 1 missing for 600 s")
    pods = pod(phase="Failed", record=last), pod("0-1", 1, phase="Pending")

    plan = outcome.decide(seen(begun(Phase.RECOVERING, attempts={"0-0": 0, "0-1": 1}), *pods), NOW)

    assert plan is not None
    assert (plan.state.phase, plan.state.reason, plan.state.round) == (Phase.PENDING, "PodsReleased", 1)
    assert (plan.state.attempts, plan.state.pods) == ({"0-0": 1, "0-1": 2}, {})
    assert plan.state.charged == {Lost.HOST_LOST: 1}
    assert plan.state.lost_at == {"0-1": "node-0-1"}
    assert plan.state.not_before is not None
    assert plan.state.not_before >= NOW + 5
    assert "host 1 missing for 600 s" in plan.events[0].message


def test_hosts_that_are_given_back_have_a_budget_and_a_deadline() -> None:
    """Where they are used up, the job fails by their name."""
    made_of = snapshot(manifest(recovery={"restarts": {"hostLost": 1}}))
    last = pod(phase="Failed", record=record(ExitCode.HOSTS_MISSING, checkpoint_step=None)), pod("0-1")

    spent = outcome.decide(seen(begun(charged={"hostLost": 1}), *last, made_of=made_of), NOW)
    late = outcome.decide(seen(begun(), *last, deadline_seconds=60.0), NOW)
    suspended = outcome.decide(seen(begun(), *last, suspend=True), NOW)

    assert spent is not None
    assert (spent.state.phase, spent.state.reason) == (Phase.FAILED, "PodsReleased")
    assert late is not None
    assert (late.state.phase, late.state.reason) == (Phase.FAILED, "DeadlineExceeded")
    assert suspended is None


def test_an_agent_that_ended_alone_says_nothing_of_the_run() -> None:
    """A record without a code is of one host; so is an end without a record."""
    for last in (record(None), None):
        assert outcome.decide(seen(begun(), pod(phase="Failed", record=last), pod("0-1")), NOW) is None


def test_a_replaced_pod_may_have_the_last_word() -> None:
    """A pod that was told to go and ended with the run has ended the run."""
    state = begun(attempts={"0-0": 1, "0-1": 0}, pods={"0-1": "uid-0-1-0"})

    plan = outcome.decide(seen(state, pod(phase="Succeeded", record=record(0)), pod("0-1")), NOW)

    assert plan is not None
    assert plan.state.phase == Phase.COMPLETE


def test_a_replaced_pod_that_missed_the_others_says_nothing_of_the_run() -> None:
    """Its node was out of reach, and the run goes on with its successor; one that was not replaced is believed."""
    alone = pod("0-1", phase="Failed", record=record(ExitCode.HOSTS_MISSING, message="host 0 was not heard for 1200 s"))
    replaced = begun(attempts={"0-0": 0, "0-1": 1}, pods={"0-0": "uid-0-0-0", "0-1": "uid-0-1-1"})

    assert outcome.decide(seen(replaced, pod(), alone, pod("0-1", 1)), NOW) is None
    plan = outcome.decide(seen(begun(), pod(), alone), NOW)
    assert plan is not None
    assert plan.state.reason == "PodsReleased"


@pytest.mark.parametrize("code", [ExitCode.STORAGE, ExitCode.NONFINITE, ExitCode.FAILURE, ExitCode.SAVED])
def test_a_replaced_pod_cannot_end_the_run_of_its_successor(code: ExitCode) -> None:
    """Its node was out of reach, and is back: how the run ended there is not how it goes on with the successor."""
    late = pod(phase="Failed", record=record(code, message="as it was there"))
    replaced = begun(attempts={"0-0": 1, "0-1": 0}, pods={"0-0": "uid-0-0-1", "0-1": "uid-0-1-0"})
    not_made_yet = replace(replaced, pods={"0-1": "uid-0-1-0"})

    assert outcome.decide(seen(replaced, late, pod("0-0", 1), pod("0-1")), NOW) is None
    assert outcome.decide(seen(not_made_yet, late, pod("0-1")), NOW) is not None
    by_other = pod("0-1", phase="Failed", record=record(code, message="as it is here"))
    plan = outcome.decide(seen(replaced, late, pod("0-0", 1), by_other), NOW)
    assert plan is not None
    assert "as it is here" in plan.events[0].message


def test_a_replaced_pod_may_tell_that_the_run_is_complete() -> None:
    """All steps are taken and saved, whatever its successor does over again."""
    replaced = begun(attempts={"0-0": 1, "0-1": 0}, pods={"0-0": "uid-0-0-1", "0-1": "uid-0-1-0"})

    plan = outcome.decide(seen(replaced, pod(phase="Succeeded", record=record(0)), pod("0-0", 1), pod("0-1")), NOW)

    assert plan is not None
    assert plan.state.phase == Phase.COMPLETE


def test_a_record_of_an_earlier_round_is_over() -> None:
    """What ended then is not the end of this round."""
    state = begun(round=1, attempts={"0-0": 1, "0-1": 1})

    assert outcome.decide(seen(state, pod(phase="Failed", record=record(80))), NOW) is None


def test_saved_without_being_asked_goes_on() -> None:
    """A run that somebody stopped from inside begins a new round, with new names, at a cost."""
    ended = pod(phase="Failed", record=record(80)), pod("0-1", phase="Failed", record=record(80))

    plan = outcome.decide(seen(begun(), *ended), NOW)

    assert plan is not None
    assert plan.state.reason == SAVED_UNEXPECTEDLY
    assert plan.state.round == 1
    assert plan.state.attempts == {"0-0": 1, "0-1": 1}
    assert plan.state.pods == {}
    assert plan.state.charged == {Lost.UNKNOWN: 1}


def test_saved_because_of_a_suspend_is_left_to_it() -> None:
    """It is what was asked for."""
    ended = pod(phase="Failed", record=record(80))

    assert outcome.decide(seen(begun(Phase.SUSPENDING), ended), NOW) is None
    assert outcome.decide(seen(begun(), ended, suspend=True), NOW) is None


def test_saved_at_the_deadline_is_too_late() -> None:
    """The launcher keeps the deadline, too; the job has failed, and its checkpoint is there."""
    plan = outcome.decide(seen(begun(), pod(phase="Failed", record=record(80)), deadline_seconds=30.0), NOW)

    assert plan is not None
    assert plan.state.phase == Phase.FAILED
    assert plan.state.reason == "DeadlineExceeded"


@pytest.mark.parametrize("now_asked", [36_000.0, None])
def test_a_deadline_that_was_made_longer_costs_no_restart(now_asked: float | None) -> None:
    """The run knew the old one, and stopped at it; the next round knows the new one, and the message says which."""
    made_of = snapshot(manifest(deadline="1h", recovery={"restarts": {"unknown": 0}}))
    ended = pod(phase="Failed", record=record(80)), pod("0-1", phase="Failed", record=record(80))

    def plan(ran_seconds: float) -> Plan | None:
        state = begun(ran_at=NOW - ran_seconds)
        return outcome.decide(seen(state, *ended, made_of=made_of, deadline_seconds=now_asked), NOW)

    at_it, before = plan(3610), plan(3590)

    assert at_it is not None
    assert (at_it.state.phase, at_it.state.round, at_it.state.reason) == (Phase.RECOVERING, 1, SAVED_UNEXPECTEDLY)
    assert (at_it.state.charged, at_it.state.losses, at_it.state.not_before) == ({}, {}, NOW)
    assert "stopped at the deadline that its round began with, 3600 s, and goes on" in at_it.state.message
    assert before is not None
    assert before.state.phase == Phase.FAILED


@pytest.mark.parametrize(
    ("message", "step", "left"),
    [
        ("saved and stopped", 40, "saved and stopped; the newest checkpoint is of step 40"),
        ("stopped before the first step; there was nothing to save", None, None),
        ("stopped after step 41; the newest checkpoint is of step 40", 40, None),
    ],
)
@pytest.mark.parametrize(
    ("state", "fields", "said"),
    [
        ({}, {}, "the run stopped from inside, and goes on: {left}"),
        ({"growth": Growth(asked_at=NOW)}, {}, "the run stopped ({left}), and goes on with 1 of 1 slices"),
        ({"ran_at": NOW - 3610}, {"deadline_seconds": 3600.0}, "stopped at its deadline: {left}"),
        (
            {"ran_at": NOW - 3610},
            {"deadline_seconds": 36_000.0},
            "the run stopped at the deadline that its round began with, 3600 s, and goes on: {left}",
        ),
    ],
)
def test_a_stop_is_told_in_the_words_of_the_run(
    message: str, step: int | None, left: str | None, state: dict[str, Any], fields: dict[str, Any], said: str
) -> None:
    """Nobody says that it was saved where there was nothing to save; the newest checkpoint's step is told, if any."""
    ended = pod(phase="Failed", record=record(80, message=message, checkpoint_step=step)), pod("0-1", phase="Failed")
    made_of = snapshot(manifest(deadline="1h"))

    plan = outcome.decide(seen(begun(**state), *ended, made_of=made_of, slice_counts=(1,), **fields), NOW)

    assert plan is not None
    assert plan.events[0].message == said.format(left=left or message)


@pytest.mark.parametrize(("code", "reason"), [(80, SAVED_UNEXPECTEDLY), (87, PODS_RELEASED)])
def test_a_run_that_goes_on_without_its_snapshot_and_its_class_begins_another_round(code: int, reason: str) -> None:
    """Free of charge, for nothing tells its budgets; it waits for its class, and then has pods with other names."""
    pods = [pod(host, phase="Failed", record=record(code, message="as it was")) for host in ("0-0", "0-1")]
    lost: dict[str, Any] = {"snapshot": None, "desired": None, "problem": "no such class"}

    plan = decide(seen(begun(), *pods, **lost), SETTINGS, NOW)
    waits = decide(seen(plan.state, *pods, **lost), SETTINGS, NOW)
    back = decide(seen(waits.state, *pods, snapshot=None), SETTINGS, NOW)

    assert (plan.state.round, plan.state.reason, plan.state.message) == (1, reason, "as it was")
    assert (plan.state.charged, plan.state.losses) == ({}, {})
    assert (waits.state.round, waits.state.reason, waits.state.message) == (1, INVALID, "no such class")
    made = {step.manifest["metadata"]["name"] for step in back.steps if isinstance(step, Create)}
    assert {"job-shardwise-1", "job-0-0-1", "job-0-1-1"} <= made
    assert (back.state.round, back.state.charged) == (1, {})
