"""Jobs in the queues of a real Kueue, on a real API server: admitted, preempted, resumed, ended."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.cluster import kueue
from tests.cluster.api_server import ApiServer
from tests.cluster.commands import wait
from tests.operator.building import record
from tests.operator.living import EVICTED
from tests.operator.operating import MERGE, Operator, Place
from tests.operator.queues import FLAVOR_LABEL, FLAVOR_TAINT, ManyAgents, Queues, make, queued_job

from shardwise_operator.runtime.kinds import condition_of

PODS = ("job-0-0-0", "job-0-1-0")
AGAIN = ("job-0-0-1", "job-0-1-1")
_MANY_SECONDS = 180.0  # twenty jobs on a busy machine
_COLLECTED_SECONDS = 120.0  # the garbage collector seeks new kinds rarely
Make = Callable[..., Queues]


@pytest.fixture(scope="module", autouse=True)
def _kueue(_api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with kueue.operating(_api.client, tmp_path_factory.mktemp("kueue")):
        yield


@pytest.fixture
def agents() -> ManyAgents:
    """Return what answers for the host 0 of each job."""
    return ManyAgents()


@pytest.fixture
def operator(_api: ApiServer, namespace: str, agents: ManyAgents) -> Iterator[Operator]:
    """Return an operator that knows of Kueue."""
    with Operator(_api.kubeconfig, namespace, agents, kueue=True, kueue_priority_boost=True) as running:
        yield running


@pytest.fixture
def queues(place: Place, operator: Operator) -> Iterator[Make]:
    """Return a function that makes the queues of the namespace."""
    del operator
    made: list[Queues] = []

    def making(cpus: int, **fields: Any) -> Queues:
        made.append(Queues(place, cpus, **fields))
        return made[-1]

    yield making
    for each in made:
        each.remove()


def _reason(place: Place, name: str = "job") -> str:
    return str(place.status(name).get("reason"))


def test_a_job_waits_for_quota_and_its_pods_go_where_the_flavor_says(place: Place, queues: Make) -> None:
    """The second of two jobs has no pod until the first has ended, says why, and since when."""
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
    place.until("Kueue to know", lambda: made.condition("job", "PodsReady").get("status") == "True")
    for pod in PODS:
        place.end(pod, 0, record(0))
    place.until_phase("Complete")
    place.until_pods("next-0-0-0", "next-0-1-0", job="next")

    finished = made.condition("job", "Finished")
    assert (finished["status"], finished["reason"], finished["message"]) == ("True", "Succeeded", "100 steps")
    place.until("its status to say so", lambda: _admitted(place, "next") == "True")


def test_a_preempted_job_saves_first_and_goes_on_later(place: Place, queues: Make, agents: ManyAgents) -> None:
    """Its quota goes to the other one when its last pod has ended; admitted again, it goes on where it was."""
    made = queues(2)
    with agents.living(place, "job") as hosts, agents.living(place, "urgent", 1) as urgent:
        hosts.holds_at, urgent.holds_at = 40, 0
        place.apply(queued_job(priority=made.priority("low")))
        place.until("step 40", lambda: place.status().get("progress", {}).get("step") == 40)
        uid = made.workloads()["job"]["metadata"]["uid"]
        place.apply(queued_job("urgent", priority=made.priority("high")))
        place.until_phase("Running", "urgent")
        status = place.status()

        assert set(agents.stopped) == {"192.0.2.1"}
        assert (status["phase"], status["reason"], status["round"]) == ("Pending", "Evicted", 1)
        assert status["message"].startswith("Preempted to accommodate a workload")
        assert status["checkpoint"]["step"] == 40
        assert place.pods() == {}
        urgent.holds_at = hosts.holds_at = 101
        place.until_phase("Complete", "urgent")
        assert place.until_phase("Complete")["progress"]["step"] == 100

    assert made.workloads()["job"]["metadata"]["uid"] == uid
    assert place.status().get("restarts", {}) == {}


def test_of_twenty_jobs_the_ten_with_the_freshest_checkpoints_go(
    place: Place, queues: Make, agents: ManyAgents
) -> None:
    """Each of them is asked to save; the others, which would lose hours, are left alone."""
    made, names = queues(40), [f"job-{number:02}" for number in range(20)]
    with ExitStack() as stack:
        for number, name in enumerate(names):
            stack.enter_context(agents.living(place, name, number)).holds_at = 50
            place.apply(queued_job(name, priority=made.priority("low")))
        wait("all at step 50", lambda: all(_step(place, name) == 50 for name in names), _MANY_SECONDS)
        old, fresh = set(names[::2]), set(names[1::2])
        for name in old:
            _age(place, name)
        wait(
            "the boosts",
            lambda: {job for job, each in made.workloads().items() if _boosted(each)} == old,
            _MANY_SECONDS,
        )
        place.apply(queued_job("urgent", priority=made.priority("high"), cpu="10"))
        wait("its pods", lambda: len(place.pods("urgent")) == 2, _MANY_SECONDS)
        place.until("ten to wait", lambda: {name for name in names if _reason(place, name) == "Evicted"} == fresh)

        assert all(place.status(name)["checkpoint"]["step"] == 50 for name in fresh)
        assert all(place.status(name)["phase"] == "Running" for name in old)
        assert len(set(agents.stopped)) == 10


def test_a_suspend_gives_the_quota_back_and_a_resume_queues_anew(
    place: Place, queues: Make, agents: ManyAgents
) -> None:
    """Only then may another job have it."""
    made = queues(2)
    with agents.living(place, "job") as hosts:
        hosts.holds_at = 40
        place.apply(queued_job())
        place.until("step 40", lambda: _step(place, "job") == 40)
        place.change("job", suspend=True)
        place.until_phase("Suspended")
        place.until("its Workload to go", lambda: not made.workloads())
        place.apply(queued_job("next"))
        place.until_pods("next-0-0-0", "next-0-1-0", job="next")
        place.change("job", suspend=False)
        place.until("it to queue", lambda: _reason(place) == "Queued")
        assert place.pods() == {}
        place.delete("next")
        wait("its pods", lambda: set(place.pods()) == set(AGAIN), _COLLECTED_SECONDS)


def test_a_replaced_pod_does_not_queue(place: Place, queues: Make) -> None:
    """The quota stays with the job, even while another one waits for it."""
    made = queues(2)
    place.apply(queued_job())
    place.until_pods(*PODS)
    place.run(*PODS)
    uid = made.workloads()["job"]["metadata"]["uid"]
    place.apply(queued_job("next"))
    place.until("it to queue", lambda: "insufficient" in place.status("next").get("message", ""))

    place.end("job-0-1-0", 137, conditions=[EVICTED])
    place.until_pods(*PODS, "job-0-1-1")

    assert made.workloads()["job"]["metadata"]["uid"] == uid
    assert place.pods("next") == {}


@pytest.mark.parametrize("how", ["deactivated", "deleted"])
def test_a_workload_that_a_person_takes_away_stops_the_job(
    place: Place, queues: Make, agents: ManyAgents, how: str
) -> None:
    """It saves, waits, and goes on when it is admitted again; one that was deleted queues by itself."""
    made = queues(2)
    with agents.living(place, "job") as hosts:
        hosts.holds_at = 40
        place.apply(queued_job())
        place.until("step 40", lambda: _step(place, "job") == 40)
        if how == "deactivated":
            made.change("job", {"spec": {"active": False}})
            place.until("it to wait", lambda: place.status()["round"] == 1 and _reason(place) == "Evicted")
            place.until("its quota to be free", lambda: made.condition("job", "QuotaReserved")["status"] == "False")
            assert place.pods() == {}
            made.change("job", {"spec": {"active": True}})
        else:
            made.delete("job")
        hosts.holds_at = 101
        done = place.until_phase("Complete")

    assert (done["round"], done["checkpoint"]["step"]) == (1, 100)
    assert len(set(agents.stopped)) == 1


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
    api_server: ApiServer, place: Place, namespace: str, agents: ManyAgents
) -> None:
    """It would run past its queue: its status says what is missing, and no pod is made."""
    with Operator(api_server.kubeconfig, namespace, agents):
        place.apply(queued_job())
        place.until("its words", lambda: _reason(place) == "Invalid")

        assert "kueue.enabled" in place.status()["message"]
        assert place.pods() == {}


def _admitted(place: Place, name: str) -> str:
    return str(condition_of({"status": place.status(name)}, "Admitted").get("status"))


def _boosted(workload: dict[str, Any]) -> bool:
    return "kueue.x-k8s.io/priority-boost" in workload["metadata"].get("annotations", {})


def _step(place: Place, name: str) -> int:
    return int(place.status(name).get("progress", {}).get("step", 0))


def _age(place: Place, name: str) -> None:
    """Have a job look as if it had run, and saved nothing, for two hours."""
    path = place.path("trainingjobs", f"{name}/status", "apis/shardwise.dev/v1alpha1")
    place.client.request("PATCH", path, {"status": {"runTime": "2020-01-01T00:00:00Z"}}, MERGE)
