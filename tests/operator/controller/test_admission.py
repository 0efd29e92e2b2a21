"""Jobs that a real Kueue admits: when, with which priority, and where their pods go."""

from collections.abc import Callable

from tests.cluster.api_server import ApiServer
from tests.operator.building import record
from tests.operator.operating import MERGE, Operator, Place, StandInAgents
from tests.operator.queues import FLAVOR_LABEL, FLAVOR_TAINT, Queues, make, queued_job

from shardwise_operator.runtime.kinds import condition_of

PODS = ("job-0-0-0", "job-0-1-0")
Make = Callable[..., Queues]


def test_a_job_waits_for_quota_and_its_pods_go_where_the_flavor_says(place: Place, queues: Make) -> None:
    """The second of two jobs has no pod until the first has ended, says why, and since when.

    A pod of the first that is lost is waited for, with its quota.
    """
    made = queues(2)
    place.apply(queued_job())
    place.until_pods(*PODS)
    place.apply(queued_job("next"))
    place.until("its words", lambda: "insufficient" in place.status("next").get("message", ""))

    status = place.status("next")
    waits = condition_of({"status": status}, "Admitted")
    assert (status["phase"], status["reason"]) == ("Pending", "Queued")
    assert (waits["status"], waits["reason"]) == ("False", "Queued")
    assert place.pods("next") == {}
    (pods,) = made.workloads()["next"]["spec"]["podSets"]
    assert (pods["count"], "minCount" in pods) == (2, False)
    assert place.pods()["job-0-1-0"]["spec"]["nodeSelector"][FLAVOR_LABEL] == made.name
    assert FLAVOR_TAINT in place.pods()["job-0-1-0"]["spec"]["tolerations"]
    place.run(*PODS)
    place.until("Kueue to know", lambda: made.condition("job", "PodsReady").get("reason") == "Started")
    place.remove(PODS[1])
    place.until("Kueue to know of the loss", lambda: made.condition("job", "PodsReady")["reason"] == "WaitForRecovery")
    pods = (PODS[0], "job-0-1-1")
    place.until_pods(*pods)
    place.run(pods[1])
    place.until("Kueue to know of the other", lambda: made.condition("job", "PodsReady")["reason"] == "Recovered")
    for pod in pods:
        place.end(pod, 0, record(0))
    place.until_phase("Complete")
    place.until_pods("next-0-0-0", "next-0-1-0", job="next")

    finished = made.condition("job", "Finished")
    assert (finished["status"], finished["reason"], finished["message"]) == ("True", "Succeeded", "100 steps")
    place.until("its status to say so", lambda: _admitted(place, "next") == "True")


def test_a_class_of_priority_that_is_missing_is_said(place: Place, queues: Make) -> None:
    """The job waits, and has no Workload."""
    made = queues(2)
    place.apply(queued_job(priority="nobody-made-it"))

    place.until("its words", lambda: "nobody-made-it is not there" in place.status().get("message", ""))

    assert _reason(place) == "Queued"
    assert made.workloads() == {}


def test_each_host_goes_to_the_place_that_was_found_for_its_rank(place: Place, queues: Make) -> None:
    """Both hosts of a slice that asks for one block get nodes of one block, though the first block has room for one."""
    client, own = place.client, {FLAVOR_LABEL: place.namespace}
    block, host = "test.shardwise.dev/block", "kubernetes.io/hostname"
    rooms = {"a-1": "a", "b-1": "b", "b-2": "b"}
    for name, of in rooms.items():
        node = f"{place.namespace}-{name}"
        room = {"cpu": "1", "memory": "8Gi", "pods": "10"}
        status = {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]}
        labels = {**own, block: of, host: node}
        client.request("POST", "/api/v1/nodes", {"metadata": {"name": node, "labels": labels}, "status": status})
        # No controller is there that would take the taint of a node without a kubelet away.
        client.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": None}}, MERGE)
    levels = [{"nodeLabel": block}, {"nodeLabel": host}]
    make(client, "Topology", place.namespace, spec={"levels": levels})
    queues(4, topology=place.namespace, tolerations=[])
    job = queued_job()
    asked = {"annotations": {"kueue.x-k8s.io/podset-required-topology": block}}
    job["spec"]["pod"]["template"]["metadata"] = asked
    place.apply(job)
    place.until_pods(*PODS)

    places = [place.pods()[pod]["spec"]["nodeSelector"][host] for pod in PODS]
    assert places == [f"{place.namespace}-b-1", f"{place.namespace}-b-2"]
    for name in rooms:
        client.request("DELETE", f"/api/v1/nodes/{place.namespace}-{name}")


def test_without_kueue_a_job_with_a_queue_is_refused(
    api_server: ApiServer, place: Place, namespace: str, agents: StandInAgents
) -> None:
    """It would run past its queue: its status says what is missing, and no pod is made."""
    with Operator(api_server.kubeconfig, namespace, agents):
        place.apply(queued_job())
        place.until("its words", lambda: _reason(place) == "Invalid")

        assert "kueue.enabled" in place.status()["message"]
        assert place.pods() == {}


def _reason(place: Place) -> str:
    return str(place.status().get("reason"))


def _admitted(place: Place, name: str) -> str:
    return str(condition_of({"status": place.status(name)}, "Admitted").get("status"))
