"""A pod as it is held, and as it is read."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from shardwise_operator.observe.pod import host_of, read_pod, trimmed
from shardwise_operator.runtime.kinds import seconds_of

_WRITTEN = Path(__file__).parents[1] / "releases" / "contract-3" / "pod.json"
_SINCE = "2026-11-25T03:00:00Z"


def _of_a_cluster(**status: Any) -> dict[str, Any]:
    """A pod that an API server has sent, with more in its status."""
    pod: dict[str, Any] = json.loads(_WRITTEN.read_text(encoding="utf-8"))
    pod["status"] |= status
    return pod


def _condition(kind: str, status: str, **more: str) -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": _SINCE, **more}


def _container(name: str, **state: Any) -> dict[str, Any]:
    return {"name": name, "imageID": "sha256:1", "image": "i", "restartCount": 0, "lastState": {}, "state": state}


STATUSES: dict[str, dict[str, Any]] = {
    "as the server sent it": {},
    "without a node": {
        "phase": "Pending",
        "conditions": [_condition("PodScheduled", "False", reason="Unschedulable", message="0/3 nodes fit")],
        "containerStatuses": [],
    },
    "running beside others": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [_condition(kind, "True") for kind in ("Initialized", "Ready", "PodScheduled")],
        "containerStatuses": [_container("agent", running={"startedAt": _SINCE}), _container("mesh", running={})],
        "initContainerStatuses": [_container("first", terminated={"exitCode": 0})],
    },
    "kept from its start": {
        "containerStatuses": [_container("agent", waiting={"reason": "ErrImagePull", "message": "no such image"})]
    },
    "failed before its start": {
        "phase": "Failed",
        "containerStatuses": [_container("agent", waiting={"reason": "PodInitializing"})],
        "initContainerStatuses": [
            _container("fetch", terminated={"exitCode": 3, "reason": "Error", "finishedAt": _SINCE})
        ],
    },
    "ended": {
        "phase": "Failed",
        "reason": "Evicted",
        "conditions": [_condition("DisruptionTarget", "True", reason="DeletionByTaintManager")],
        "containerStatuses": [_container("agent", terminated={"exitCode": 3, "reason": "Error", "message": "{}"})],
    },
}


@pytest.mark.parametrize("status", STATUSES.values(), ids=STATUSES.keys())
def test_what_is_held_reads_as_the_whole(status: dict[str, Any]) -> None:
    """Nothing that decisions go by is lost with what is not kept, and the object itself is left as it was."""
    whole = _of_a_cluster(**status)
    whole["metadata"]["deletionTimestamp"] = _SINCE
    whole["spec"]["schedulingGates"] = [{"name": "shardwise.dev/slice"}]
    before = deepcopy(whole)

    held = trimmed(whole)

    assert read_pod(held) == read_pod(before)
    assert host_of(held) == host_of(before)
    assert whole == before


def test_of_a_plan_s_pod_it_is_held_when_it_was_created() -> None:
    """Its time to start counts from there; of the pods of hosts, of which there are thousands, nothing goes by that."""
    host = _of_a_cluster()
    plan = deepcopy(host)
    plan["metadata"]["labels"]["shardwise.dev/plan"] = "true"

    assert read_pod(trimmed(plan)) == read_pod(plan)
    assert read_pod(trimmed(plan)).created_at == seconds_of(plan["metadata"]["creationTimestamp"])
    assert read_pod(trimmed(host)).created_at is None


def test_what_is_held_is_a_small_part() -> None:
    """Of a pod that runs, a tenth: thousands of them are in memory."""
    whole = _of_a_cluster(**STATUSES["running beside others"])

    assert len(json.dumps(trimmed(whole))) < 0.15 * len(json.dumps(whole))


@pytest.mark.parametrize("odd", [None, "text", [None], 3])
def test_a_status_of_another_shape_is_held_as_it_is(odd: Any) -> None:
    """The thread of the watch takes in whatever comes: who reads it is one pass that fails."""
    held = trimmed(_of_a_cluster(containerStatuses=odd, initContainerStatuses=odd))

    assert held["status"]["containerStatuses"] == odd
