"""Containers that others put into a pod: the agent is known by its name, and its end is the end of the host."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import NOW, SETTINGS, begun, pod, record, seen

from shardwise_operator.decide.decide import decide
from shardwise_operator.decide.maintain import maintain
from shardwise_operator.decide.pending import pod_problems
from shardwise_operator.decide.plan import Delete
from shardwise_operator.decide.policies import losses
from shardwise_operator.observe.pod import Pod, read_pod
from shardwise_operator.observe.state import Phase
from shardwise_operator.reasons import Lost


def _read(*containers: dict[str, Any], init: Sequence[dict[str, Any]] = (), **more: Any) -> Pod:
    labels = {"shardwise.dev/slice": "0", "shardwise.dev/host": "0"}
    labels |= {"shardwise.dev/attempt": "0", "shardwise.dev/round": "0"}
    status = {"phase": "Running", "containerStatuses": list(containers), **more}
    metadata = {"name": "job-0-0-0", "uid": "u", "labels": labels}
    return read_pod({"metadata": metadata, "spec": {"initContainers": [*init]}, "status": status})


def _ended(code: int, message: str = "") -> dict[str, Any]:
    return {"name": "agent", "state": {"terminated": {"exitCode": code, "reason": "Error", "message": message}}}


def test_the_agent_is_known_by_its_name() -> None:
    """Whatever comes before it: statuses are sorted by the containers' names."""
    sidecar = {"name": "a-mesh", "state": {"running": {}}, "imageID": "mesh"}

    found = _read(sidecar, {**_ended(83, record(83).dumps()), "imageID": "ours"})

    assert (found.exit_code, found.image_id) == (83, "ours")
    assert found.record == record(83)
    assert found.ended
    assert found.lingers
    assert not _read(_ended(0)).lingers, "the kubelet says it of the pod in a moment"
    assert not _read(sidecar, {"name": "agent", "state": {"running": {}}}).ended
    assert _read(sidecar).exit_code is None


def _waiting(name: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}}


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("ImagePullBackOff", "ImagePull"), ("CreateContainerConfigError", "ContainerStart")],
)
def test_whichever_container_cannot_start_says_why(reason: str, shown: str) -> None:
    """The agent waits for its pod's init containers, and the pod for those beside the agent; which one is said."""
    on_its_way, broken = _waiting("agent", "PodInitializing"), _waiting("a-mesh", reason, "no such thing")
    running = {"name": "agent", "state": {"running": {}}}

    for found in (_read(on_its_way, initContainerStatuses=[broken]), _read(broken, running)):
        assert list(pod_problems([found])) == [(shown, f"job-0-0-0: {reason}: container a-mesh: no such thing")]
    own = _read(_waiting("agent", reason, "no such thing"), broken)
    assert list(pod_problems([own])) == [(shown, f"job-0-0-0: {reason}: no such thing")]
    none = _read(on_its_way, initContainerStatuses=[_waiting("first", "ContainerCreating")])
    assert list(pod_problems([none])) == []


def _failed(name: str, code: int, at: str, reason: str = "Error") -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}}


def test_an_init_container_that_fails_is_told_by_its_name_and_its_exit_code() -> None:
    """Not those that ended well before it, nor those that were ended because of it; the agent is told likewise."""
    done, fetch = _failed("first", 0, "2026-11-25T03:00:00Z"), _failed("fetch", 3, "2026-11-25T03:00:01Z")
    proxy, on_its_way = _failed("proxy", 143, "2026-11-25T03:00:02Z"), _waiting("agent", "PodInitializing")
    failed = _read(on_its_way, phase="Failed", initContainerStatuses=[proxy, done, fetch])
    killed = _read(_failed("agent", 137, "2026-11-25T03:00:00Z", "OOMKilled"), phase="Failed")
    other = pod("0-1")

    def told(*pods: Pod) -> str:
        plan = losses.decide(seen(begun(), *pods), NOW)
        assert plan is not None
        return plan.events[0].message.rpartition("; ")[0]

    assert told(failed, other) == "host 0-0 lost its pod: unknown; container fetch ended (Error, exit code 3)"
    both = failed, replace(other, phase="Failed", failure=failed.failure)
    assert told(*both) == (
        "2 hosts lost their pods (0-0, 0-1): unknown; of 0-0, container fetch ended (Error, exit code 3)"
    )
    no_word = replace(killed, exit_reason="Error", failure="container agent ended (Error, exit code 137)")
    assert told(no_word, other) == "host 0-0 lost its pod: unknown; container agent ended (Error, exit code 137)"
    assert killed.failure == "container agent ended (OOMKilled, exit code 137)"
    assert told(replace(failed, reason="Evicted"), other) == "host 0-0 lost its pod: eviction"
    assert told(replace(failed, deleting_at=NOW), other) == "host 0-0 lost its pod: unknown"


def test_an_init_container_without_memory_is_charged_as_the_trainer_is() -> None:
    """It would run out of memory again and again: it has the budget of that, and its name is told."""
    fetch, on_its_way = _failed("fetch", 137, "2026-11-25T03:00:01Z", "OOMKilled"), _waiting("agent", "PodInitializing")
    found = _read(on_its_way, phase="Failed", initContainerStatuses=[fetch])

    plan = losses.decide(seen(begun(), found, pod("0-1")), NOW)
    evicted = losses.decide(seen(begun(), replace(found, reason="Evicted"), pod("0-1")), NOW)

    assert plan is not None
    assert plan.state.charged == {Lost.OUT_OF_MEMORY: 1}
    told = "host 0-0 lost its pod: outOfMemory; container fetch ended (OOMKilled, exit code 137); "
    assert plan.events[0].message.startswith(told)
    assert evicted is not None
    assert evicted.state.charged == {Lost.EVICTION: 1}
    assert "fetch" not in evicted.events[0].message


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (_failed("fetch", 3, "2026-11-25T03:00:01Z"), "unknown; container fetch ended (Error, exit code 3); "),
        (_failed("fetch", 0, "2026-11-25T03:00:01Z"), "unknown; 99 of 100 restarts"),
    ],
    ids=["another failed", "none failed"],
)
def test_a_sidecar_without_memory_ends_no_pod(first: dict[str, Any], told: str) -> None:
    """The kubelet starts it again: the pod goes on meanwhile, and if it ends, something else ended it."""
    proxy = _failed("proxy", 137, "2026-11-25T03:00:00Z", "OOMKilled")
    containers = [{"name": "proxy", "restartPolicy": "Always"}, {"name": "fetch"}]

    goes_on = _read({"name": "agent", "state": {"running": {}}}, init=containers, initContainerStatuses=[proxy])
    ended = _read(
        _waiting("agent", "PodInitializing"), init=containers, phase="Failed", initContainerStatuses=[proxy, first]
    )
    plan = losses.decide(seen(begun(), ended, pod("0-1")), NOW)

    assert losses.decide(seen(begun(), goes_on, pod("0-1")), NOW) is None
    assert plan is not None
    assert plan.events[0].message.startswith(f"host 0-0 lost its pod: {told}")


def test_a_run_is_over_when_its_agents_are() -> None:
    """A container that goes on keeps no job from being Complete, and its pod is deleted after a while."""
    pods = [pod(key, exit_code=0, others_run=True, record=record(0)) for key in ("0-0", "0-1")]

    state = decide(seen(begun(), *pods), SETTINGS, NOW).state
    then = decide(seen(state, *pods), SETTINGS, NOW + 31)

    assert state.phase == Phase.COMPLETE
    assert [type(step) for step in then.steps] == [Delete, Delete]


def test_a_host_whose_agent_has_ended_is_lost() -> None:
    """Its pod holds a node for nothing, so it goes; one that has ended whole would be kept, with its log."""
    pods = pod(), pod("0-1", exit_code=1, others_run=True)

    plan = losses.decide(seen(begun(), *pods), NOW)

    assert plan is not None
    assert plan.state.charged == {Lost.UNKNOWN: 1}
    deleted = [step.name for step in maintain(seen(plan.state, *pods), SETTINGS, NOW).steps if isinstance(step, Delete)]
    assert deleted == ["job-0-1-0"]
