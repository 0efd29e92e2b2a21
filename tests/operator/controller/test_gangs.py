"""Jobs that Kubernetes's own scheduler places whole or not at all, on Node objects: the kubelet's part is played."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.cluster.api_server import ApiServer
from tests.operator.building import asking, classes, manifest, record, snapshot
from tests.operator.installing import install_types
from tests.operator.living import EVICTED
from tests.operator.operating import MERGE, Operator, Place, StandInAgents

from shardwise.job.accelerators import class_of
from shardwise.job.topology import node_labels

_GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true"
_SERVED = "--runtime-config=scheduling.k8s.io/v1alpha1=true"
_NODES = ("node-a", "node-b", "node-c")
_POOL = "cloud.google.com/gke-nodepool"
_SLICES = {"accelerator": "tpu-v5p", "topology": "2x2x2", "slices": 2}


@pytest.fixture
def place() -> Iterator[Place]:
    """Return a namespace of an API server with gangs, a scheduler, and no nodes yet."""
    with ApiServer(options=[_GATES, _SERVED]) as server:
        server.start_scheduler(_GATES)
        install_types(server.client)
        found = Place(server.client, "default")
        with Operator(server.kubeconfig, "default", StandInAgents(), gang_scheduling=True):
            yield found


def _make_node(place: Place, name: str, labels: Mapping[str, str], **room: str) -> None:
    has = {"cpu": "1", "memory": "1Ti", "pods": "10", **room}
    ready = {"type": "Ready", "status": "True", "reason": "StandIn", "message": "no kubelet"}
    status = {"capacity": has, "allocatable": has, "conditions": [ready]}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}
    place.client.request("POST", "/api/v1/nodes", node)
    # Each begins as not ready, and there is no controller here that would see that it is.
    place.client.request("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, MERGE)


@pytest.fixture
def nodes(place: Place) -> None:
    """Make three nodes with room for one pod each."""
    for name in _NODES:
        _make_node(place, name, {})


@pytest.fixture
def pools(place: Place) -> None:
    """Make three pools, each of which is a place for a slice of two hosts."""
    machine = class_of(dict(classes()["tpu-v5p"]))
    labels = node_labels(machine, snapshot(_job("job", hardware=_SLICES)).job.spec.hardware)
    for pool in ("pool-a", "pool-b", "pool-c"):
        for number in range(2):
            room = {"cpu": "500", "google.com/tpu": "4"}
            _make_node(place, f"{pool}-{number}", {**labels, _POOL: pool}, **room)


def _job(name: str, **fields: Any) -> dict[str, Any]:
    """A job whose volume needs no claim; on three nodes of one CPU, each of its two hosts takes a whole node."""
    job = asking(manifest(name, **fields), agent={"resources": {"requests": {"cpu": "1"}}})
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


def _whole_one(place: Place, hosts: int) -> tuple[str, str]:
    """Wait until one of two jobs has a node for each host, and the other was refused one; the names of both."""
    place.until("one of them", lambda: any(len(_bound(place, name)) == hosts for name in ("one", "two")))
    first, second = ("one", "two") if len(_bound(place, "one")) == hosts else ("two", "one")
    place.until("the scheduler's answer", lambda: _refused(place, second))
    place.until("all of its pods", lambda: len(place.pods(second)) == hosts)
    place.until_phase("Pending", second)
    return first, second


@pytest.mark.usefixtures("nodes")
def test_of_two_jobs_that_do_not_both_fit_one_runs_whole(place: Place) -> None:
    """No pod of the other one is bound, though a node is free; it runs when the first has ended."""
    for name in ("one", "two"):
        place.apply(_job(name))
    first, second = _whole_one(place, 2)
    place.run(f"{first}-0-0-0", f"{first}-0-1-0")

    assert _bound(place, second) == {}
    for pod in (f"{first}-0-0-0", f"{first}-0-1-0"):
        place.end(pod, 0, record())
    place.until_phase("Complete", first)
    place.until("the other one", lambda: len(_bound(place, second)) == 2)


@pytest.mark.usefixtures("pools")
def test_of_two_jobs_of_slices_one_has_a_place_for_each(place: Place) -> None:
    """The first hosts are placed together, and the others follow them; the free place stays free."""
    for name in ("one", "two"):
        place.apply(_job(name, hardware=_SLICES))
    first, second = _whole_one(place, 4)
    places = {pod.removeprefix(f"{first}-")[0]: node[:-2] for pod, node in _bound(place, first).items()}

    assert len(set(places.values())) == 2
    assert all(node.startswith(places[pod.removeprefix(f"{first}-")[0]]) for pod, node in _bound(place, first).items())
    assert _bound(place, second) == {}


@pytest.mark.usefixtures("nodes")
def test_a_replaced_pod_gets_a_node_beside_those_that_go_on(place: Place) -> None:
    """It joins a gang that is whole with it, and waits for no third."""
    place.apply(_job("job"))
    place.until("its nodes", lambda: len(_bound(place, "job")) == 2)
    place.run("job-0-0-0", "job-0-1-0")
    place.until_phase("Starting")
    place.end("job-0-1-0", 137, conditions=[EVICTED])
    place.until("its next node", lambda: "job-0-1-1" in _bound(place, "job"))

    assert set(_bound(place, "job")) == {"job-0-0-0", "job-0-1-1"}
