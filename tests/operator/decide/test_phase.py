"""How a round stands: its phase and conditions are what the pods and host 0 say, and Unknown where nobody does."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import NOW, begun, manifest, pod, seen, snapshot

from shardwise.protocol.pods import SLICE_GATE
from shardwise.protocol.run_status import RunSummary
from shardwise_operator.decide.phase import with_phase
from shardwise_operator.observe.poll import Poll
from shardwise_operator.observe.state import Phase, State

PODS = (pod(), pod("0-1"))


def _poll(phase: str = "running", *, age: float = 1.0) -> Poll:
    return Poll(heard_at=NOW - age, fresh_seconds=8.0, status=RunSummary(phase=phase, reason="why"))


def _said(state: State, kind: str) -> tuple[str, str]:
    condition = state.condition(kind)
    assert condition is not None
    return condition.status, condition.reason


@pytest.mark.parametrize(
    ("before", "told", "phase", "ready"),
    [
        (Phase.STARTING, "waiting", Phase.STARTING, "False"),
        (Phase.STARTING, "starting", Phase.STARTING, "False"),
        (Phase.STARTING, "running", Phase.RUNNING, "True"),
        (Phase.STARTING, "recovering", Phase.RECOVERING, "False"),
        (Phase.RUNNING, "recovering", Phase.RECOVERING, "False"),
        (Phase.RECOVERING, "waiting", Phase.RECOVERING, "False"),
        (Phase.RECOVERING, "running", Phase.RUNNING, "True"),
        (Phase.RUNNING, "stalled", Phase.RUNNING, "False"),
    ],
)
def test_the_run_s_word_is_the_phase(before: Phase, told: str, phase: Phase, ready: str) -> None:
    """Host 0 knows."""
    state = with_phase(seen(begun(before), *PODS, poll=_poll(told)), NOW)

    assert state.phase == phase
    assert _said(state, "Ready")[0] == ready
    assert _said(state, "Scheduled") == ("True", "Placed")


def test_when_all_pods_first_ran_stays() -> None:
    """Whatever was replaced since: the deadline counts from then."""
    replaced = pod(), pod("0-1", started_at=NOW - 1)

    assert with_phase(seen(begun(ran_at=NOW - 3600), *replaced, poll=_poll()), NOW).ran_at == NOW - 3600


def test_stalled_is_a_condition() -> None:
    """It is said with the run's words, and taken back."""
    stalled = with_phase(seen(begun(), *PODS, poll=_poll("stalled")), NOW)
    again = with_phase(seen(stalled, *PODS, poll=_poll()), NOW)

    assert _said(stalled, "Stalled") == ("True", "Stalled")
    assert _said(again, "Stalled")[0] == "False"
    assert with_phase(seen(begun(), *PODS, poll=_poll()), NOW).condition("Stalled") is None


def test_a_run_that_lacks_a_pod_is_not_stalled() -> None:
    """What hung has ended with the pod: the condition does not outlive it, and waits for no word of host 0."""
    stalled = with_phase(seen(begun(), *PODS, poll=_poll("stalled")), NOW)
    waits = pod("0-1", phase="Pending", node=None, unschedulable="0/9 nodes are available", unschedulable_since=NOW)

    lacking = with_phase(seen(stalled, pod(), waits, poll=_poll("stalled")), NOW + 60)

    assert _said(lacking, "Stalled") == ("False", "Unschedulable")
    assert with_phase(seen(begun(), pod(), waits), NOW).condition("Stalled") is None


def test_silence_is_unknown() -> None:
    """An old word does not count; the phase stays as it was last known."""
    state = with_phase(seen(begun(), *PODS, poll=_poll(age=9.0)), NOW)

    assert state.phase == Phase.RUNNING
    assert _said(state, "Ready") == ("Unknown", "Unreachable")
    refused = Poll(heard_at=NOW - 9, fresh_seconds=8.0, status=None, error="connection refused")
    assert with_phase(seen(begun(), *PODS, poll=refused), NOW).message == "connection refused"
    assert with_phase(seen(begun(Phase.PENDING), *PODS), NOW).phase == Phase.STARTING


def test_a_missing_pod_is_recovering_once_it_has_run() -> None:
    """Before it is still pending."""
    assert with_phase(seen(begun(), pod()), NOW).phase == Phase.RECOVERING
    assert with_phase(seen(begun(Phase.PENDING), pod()), NOW).phase == Phase.PENDING


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"unschedulable": "0/3 nodes are available: 3 Insufficient google.com/tpu.", "node": None}, "Unschedulable"),
        ({"waiting": "ImagePullBackOff", "waiting_message": "no such image"}, "ImagePull"),
        ({"waiting": "CreateContainerConfigError", "waiting_message": "secret not found"}, "ContainerStart"),
        ({"gates": (SLICE_GATE,), "node": None}, "WaitingForSlice"),
        ({"node": None}, "Scheduling"),
    ],
)
def test_pending_says_why(fields: dict[str, Any], reason: str) -> None:
    """In a condition of its own, and in the REASON column, with the scheduler's or kubelet's words."""
    waiting = pod("0-1", phase="Pending", address=None, **fields)

    state = with_phase(seen(begun(Phase.PENDING), pod(), waiting), NOW)

    assert state.reason == reason
    assert _said(state, "Scheduled") == ("False", reason)
    words = fields.get("unschedulable") or fields.get("waiting_message") or ""
    assert str(words) in state.message


def test_a_replacement_that_cannot_be_made_yet_says_why() -> None:
    """The pod before it still ends, or its time has not come."""
    state = begun(attempts={"0-0": 0, "0-1": 1}, pods={"0-0": "uid-0-0-0"}, message="host 0-1 lost its pod")
    ending = with_phase(seen(state, pod(), pod("0-1", deleting_at=NOW + 30)), NOW)
    waiting = with_phase(seen(replace(state, not_before=NOW + 5), pod(), pod("0-1", phase="Failed")), NOW)

    assert ending.reason == "PodEnding"
    assert ending.message == "job-0-1-0 must end before another takes its place; host 0-1 lost its pod"
    assert (waiting.reason, waiting.message) == ("Backoff", "host 0-1 lost its pod")
    over = with_phase(seen(replace(state, not_before=NOW), pod(), pod("0-1", phase="Failed")), NOW)
    assert over.reason == "Scheduling"


def test_what_ended_is_not_waited_for_in_the_words_of_a_backoff() -> None:
    """Once the lost pod has ended, its next one waits for its time; why it is made is said as before."""
    why = "host 0-1 lost its pod: nodeLost"
    attempts, pods = {"0-0": 0, "0-1": 1}, {"0-0": "uid-0-0-0"}
    state = begun(attempts=attempts, pods=pods, reason="PodReplaced", message=why, not_before=NOW + 60)
    deleted, said = pod("0-1", deleting_at=NOW + 30), []
    for last in (deleted, deleted, pod("0-1", phase="Failed"), pod("0-1", phase="Failed")):
        state = with_phase(seen(state, pod(), last), NOW)
        said.append((state.reason, state.message))

    ending = ("PodEnding", f"job-0-1-0 must end before another takes its place; {why}")
    assert said == [ending, ending, ("Backoff", why), ("Backoff", why)]
    after_another = replace(state, reason="Unschedulable", message="0/3 nodes fit")
    assert with_phase(seen(after_another, pod(), pod("0-1", phase="Failed")), NOW).message == ""


def test_a_pod_of_a_host_that_the_job_no_longer_has_keeps_nothing_waiting() -> None:
    """It cannot end on a silent node, and no other takes its place: the round has fewer hosts."""
    state = with_phase(seen(begun(), *PODS, pod("1-0", deleting_at=NOW - 90), poll=_poll()), NOW)

    assert _said(state, "Scheduled") == ("True", "Placed")


def test_a_pod_that_runs_has_its_place_though_a_sidecar_is_started_again() -> None:
    """The kubelet waits before that, for a sidecar without memory say; the trainer goes on."""
    beside = pod("0-1", waiting="CrashLoopBackOff", waiting_message="container proxy: back-off 10s")

    state = with_phase(seen(begun(), pod(), beside, poll=_poll()), NOW)

    assert state.phase == Phase.RUNNING
    assert _said(state, "Scheduled") == ("True", "Placed")


def test_times_of_conditions_stay_where_their_status_does() -> None:
    """LastTransitionTime is of the status, not of the words."""
    first = with_phase(seen(begun(), *PODS, poll=_poll()), NOW)
    other = Poll(heard_at=NOW + 60, fresh_seconds=8.0, status=RunSummary(phase="running", reason="else"))
    later = with_phase(seen(first, *PODS, poll=other), NOW + 60)

    ready = later.condition("Ready")
    assert ready is not None
    assert ready.since == NOW
    assert ready.message == "else"


def test_of_many_pods_that_end_the_first_are_named() -> None:
    """With their number: all names of the largest job would be more than a status takes."""
    made_of = snapshot(manifest(hardware={"accelerator": "cpu-sim", "topology": "64x1", "slices": 16}))
    hosts = made_of.hosts
    ending = [pod(host, deleting_at=NOW + 30) for host in hosts]

    state = with_phase(seen(begun(attempts=dict.fromkeys(hosts, 1), pods={}), *ending, made_of=made_of), NOW)

    named = "job-0-0-0, job-0-1-0, job-0-2-0, job-0-3-0, ... (1024 in all)"
    assert (state.reason, state.message) == ("PodEnding", f"{named} must end before another takes its place")
