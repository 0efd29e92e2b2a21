"""Stuck pods: charged as a lost node's, asked to go, and replaced elsewhere though they may never be gone."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import NOW, SETTINGS, begun, manifest, pod, seen, snapshot

from shardwise.protocol.run_status import RunSummary
from shardwise_operator.decide.maintain import maintain
from shardwise_operator.decide.plan import Create, Delete
from shardwise_operator.decide.policies import losses
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.poll import Poll
from shardwise_operator.observe.state import State
from shardwise_operator.reasons import NODE_AVOIDED, Lost
from shardwise_operator.runtime.kinds import PODS

WORDS = "process 7 has survived SIGKILL for 30 s (state D, waiting in nfs_wait)"
LEFT = "99 of 100 restarts for nodeLost are left before a newer checkpoint"
STUCK = {"host": 1, "address": "10.0.0.2", "message": WORDS}


def _seen(*pods: Pod, state: State | None = None, heard_at: float = NOW, **said: Any) -> Observed:
    """A job of two hosts whose host 0 says that it recovers, and which hosts are stuck."""
    status = RunSummary.model_validate({"phase": "recovering", **said})
    return seen(state or begun(), *pods, poll=Poll(heard_at=heard_at, fresh_seconds=8.0, status=status))


def test_a_stuck_pod_is_lost() -> None:
    """Its node has it, so it costs one of the node's; its next pod goes elsewhere, at once."""
    plan = losses.decide(_seen(pod(), pod("0-1"), stuck=[STUCK]), NOW)

    assert plan is not None
    assert plan.state.charged == {Lost.NODE_LOST: 1}
    assert plan.state.attempts == {"0-0": 0, "0-1": 1}
    assert plan.state.avoid == {"0-1": "node-0-1"}
    assert plan.events[0].message == f"host 0-1 lost its pod: nodeLost; it is stuck: {WORDS}; {LEFT}"


@pytest.mark.parametrize(
    "lost_at", [{}, {"0-1": "another"}, {"0-1": "node-0-1"}], ids=["the first", "the first there", "the second there"]
)
def test_it_goes_elsewhere_because_it_is_stuck(lost_at: dict[str, str]) -> None:
    """And the event says so: it need not have lost a pod there before."""
    plan = losses.decide(_seen(pod(), pod("0-1"), state=begun(lost_at=lost_at), stuck=[STUCK]), NOW)

    assert plan is not None
    avoided = [event.message for event in plan.events if event.reason == NODE_AVOIDED]
    assert avoided == ["host 0-1 is stuck in node-0-1, and goes elsewhere"]


def test_a_slice_goes_elsewhere_because_of_a_stuck_host() -> None:
    """Where it has a place of its own it goes as a whole."""
    made_of = snapshot(manifest(hardware={"accelerator": "tpu-v5p", "topology": "2x2x2"}))
    pools = {"cloud.google.com/gke-nodepool": "a"}
    told = _seen(pod(selector=pools), pod("0-1", selector=pools), stuck=[STUCK])

    plan = losses.decide(replace(told, desired=made_of, snapshot=made_of), NOW)

    assert plan is not None
    avoided = [event.message for event in plan.events if event.reason == NODE_AVOIDED]
    assert avoided == ["slice 0 has a stuck host in a, and goes elsewhere"]


@pytest.mark.parametrize(
    "observed",
    [
        _seen(pod(), pod("0-1")),
        _seen(pod(), pod("0-1"), stuck=[]),
        _seen(pod(), pod("0-1"), stuck=[{**STUCK, "address": "10.0.0.9"}]),
        _seen(pod(), pod("0-1"), stuck=[STUCK], heard_at=NOW - 60),
    ],
)
def test_only_what_is_said_now_of_this_very_pod(observed: Observed) -> None:
    """An agent of before, an old answer, and one about the pod that has gone already: nothing."""
    assert losses.decide(observed, NOW) is None


def test_it_is_charged_once() -> None:
    """Host 0 says so until it hears the next agent."""
    first = losses.decide(_seen(pod(), pod("0-1"), stuck=[STUCK]), NOW)
    assert first is not None
    next_pod = pod("0-1", 1, address="10.0.0.3")

    assert losses.decide(_seen(pod(), pod("0-1"), state=first.state, stuck=[STUCK]), NOW) is None
    assert losses.decide(_seen(pod(), pod("0-1"), next_pod, state=first.state, stuck=[STUCK]), NOW) is None


def test_it_is_asked_to_go_soon() -> None:
    """It has nothing to save."""
    state = begun(attempts={"0-0": 0, "0-1": 1}, pods={"0-0": "uid-0-0-0"})

    plan = maintain(_seen(pod(), pod("0-1"), state=state, stuck=[STUCK]), SETTINGS, NOW)

    assert Delete(PODS, "job-0-1-0", "uid-0-1-0", grace_seconds=10) in plan.steps


@pytest.mark.parametrize(("deleting_at", "made"), [(NOW, False), (NOW - 29, False), (NOW - 31, True)])
def test_the_next_one_is_made_when_all_that_can_be_killed_has_been(deleting_at: float, *, made: bool) -> None:
    """Half a minute after it was to be gone; its node is alive, and cannot end it."""
    state = begun(attempts={"0-0": 0, "0-1": 1}, pods={"0-0": "uid-0-0-0"}, avoid={"0-1": "node-0-1"})

    plan = maintain(_seen(pod(), pod("0-1", deleting_at=deleting_at), state=state), SETTINGS, NOW)

    pods = [step.manifest for step in plan.steps if isinstance(step, Create) and step.kind == PODS]
    assert [each["metadata"]["name"] for each in pods] == (["job-0-1-1"] if made else [])
    assert all("node-0-1" in str(each["spec"]["affinity"]) for each in pods)
