"""Jobs that Kubernetes's own scheduler places whole or not at all, on Node objects: the kubelet's part is played."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.api_server import ApiServer
from tests.operator.building import asking, manifest, record
from tests.operator.installing import install_types
from tests.operator.living import EVICTED
from tests.operator.operating import MERGE, Operator, Place, StandInAgents

_GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true"
_SERVED = "--runtime-config=scheduling.k8s.io/v1alpha1=true"
_NODES = ("node-a", "node-b", "node-c")


@pytest.fixture
def place() -> Iterator[Place]:
    """Return a namespace of an API server with gangs, a scheduler, and three nodes with room for one pod each."""
    with ApiServer(options=[_GATES, _SERVED]) as server:
        server.start_scheduler(_GATES)
        install_types(server.client)
        for name in _NODES:
            _make_node(server, name)
        found = Place(server.client, "default")
        with Operator(server.kubeconfig, "default", StandInAgents(), gang_scheduling=True):
            yield found


def _make_node(server: ApiServer, name: str) -> None:
    room = {"cpu": "1", "memory": "16Gi", "pods": "10"}
    ready = {"type": "Ready", "status": "True", "reason": "StandIn", "message": "no kubelet"}
    status = {"capacity": room, "allocatable": room, "conditions": [ready]}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}
    server.client.request("POST", "/api/v1/nodes", node)
    # Each begins as not ready, and there is no controller here that would see that it is.
    server.client.request("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, MERGE)


def _job(name: str) -> dict[str, Any]:
    """A job of two hosts, each of which takes a whole node."""
    job = asking(manifest(name), agent={"resources": {"requests": {"cpu": "1"}}})
    job["spec"]["pod"]["template"]["spec"]["volumes"] = [{"name": "runs", "csi": {"driver": "test.shardwise.dev"}}]
    return job


def _bound(place: Place, job: str) -> dict[str, str]:
    """The nodes of a job's pods that go on, by pod."""
    pods = place.pods(job)
    return {
        name: pod["spec"]["nodeName"]
        for name, pod in pods.items()
        if "nodeName" in pod["spec"] and pod["status"]["phase"] in ("Pending", "Running")
    }


def _refused(place: Place, job: str) -> bool:
    """Whether the scheduler has tried a pod of the job, and found no node."""
    conditions = [each for pod in place.pods(job).values() for each in pod["status"].get("conditions", [])]
    return any(each.get("reason") == "Unschedulable" for each in conditions)


def test_of_two_jobs_that_do_not_both_fit_one_runs_whole(place: Place) -> None:
    """No pod of the other one is bound, though a node is free; it runs when the first has ended."""
    for name in ("one", "two"):
        place.apply(_job(name))
    place.until("one of them", lambda: any(len(_bound(place, name)) == 2 for name in ("one", "two")))
    first, second = ("one", "two") if _bound(place, "one") else ("two", "one")
    place.run(f"{first}-0-0-0", f"{first}-0-1-0")
    place.until("the scheduler's answer", lambda: _refused(place, second))
    place.until("all of its pods", lambda: len(place.pods(second)) == 2)
    place.until_phase("Pending", second)

    assert _bound(place, second) == {}
    for pod in (f"{first}-0-0-0", f"{first}-0-1-0"):
        place.end(pod, 0, record())
    place.until_phase("Complete", first)
    place.until("the other one", lambda: len(_bound(place, second)) == 2)


def test_a_replaced_pod_gets_a_node_beside_those_that_go_on(place: Place) -> None:
    """It joins a gang that is whole with it, and waits for no third."""
    place.apply(_job("job"))
    place.until("its nodes", lambda: len(_bound(place, "job")) == 2)
    place.run("job-0-0-0", "job-0-1-0")
    place.until_phase("Starting")
    place.end("job-0-1-0", 137, conditions=[EVICTED])
    place.until("its next node", lambda: "job-0-1-1" in _bound(place, "job"))

    assert set(_bound(place, "job")) == {"job-0-0-0", "job-0-1-1"}
