"""The life of a job on a real API server: from apply to its end, with stand-ins for the nodes and for host 0."""

from typing import Any

import pytest
from tests.cluster.commands import wait
from tests.operator.building import manifest, record, verdict
from tests.operator.operating import Operator, Place, StandInAgents, told

pytestmark = pytest.mark.usefixtures("operator")


def _condition(status: dict[str, object], kind: str) -> dict[str, str]:
    conditions = status["conditions"]
    assert isinstance(conditions, list)
    return next(each for each in conditions if each["type"] == kind)


def test_from_apply_to_complete(place: Place, agents: StandInAgents) -> None:
    """All pods come at once with what they need; status tells the run's own step; its last record completes the job."""
    place.apply(manifest())
    place.until_pods("job-0-0-0", "job-0-1-0")
    assert place.there("configmaps", "job-shardwise-0")
    assert place.there("networkpolicies", "job-shardwise", "apis/networking.k8s.io/v1")
    place.until("it to say why it is Pending", lambda: place.status().get("reason") == "Scheduling")
    assert _condition(place.status(), "Scheduled")["status"] == "False"

    agents.answer = told(step=10)
    place.run("job-0-0-0", "job-0-1-0")
    status = place.until_phase("Running")
    assert status["progress"]["step"] == 10
    assert status["progress"]["loss"] == "2.5000"
    assert _condition(status, "Ready")["status"] == "True"

    agents.answer = told(step=20)
    place.until("step 20", lambda: place.status()["progress"]["step"] == 20)
    for pod in place.pods():
        place.end(pod, 0, record(0))
    done = place.until_phase("Complete")

    assert _condition(done, "Complete")["status"] == "True"
    assert done["progress"]["step"] == 100
    assert done["digest"] == "d" * 16
    assert done["goodput"] == "90%"
    assert done["completionTime"]


def test_a_name_may_begin_with_a_digit(place: Place) -> None:
    """A job is called by its size as often as not."""
    place.apply(manifest("7b-2"))

    place.until_pods("7b-2-0-0-0", "7b-2-0-1-0", job="7b-2")
    assert place.there("networkpolicies", "7b-2-shardwise", "apis/networking.k8s.io/v1")


def test_what_a_start_asks_of_the_api_server(place: Place, agents: StandInAgents, operator: Operator) -> None:
    """Each object once, however many passes there are before the cache shows it; what is written and told beside."""
    others = ("acceleratorcatalogs", "events", "leases")
    agents.answer = told()
    place.train(manifest())
    place.until("two owners", lambda: operator.requests("patch") == 1)

    assert operator.requests("create", but=(*others, "pods")) == 3
    assert operator.requests("create", but=others) == 5
    assert operator.requests("get", but=("leases",)) == 0


def test_a_status_write_changes_nothing_else(place: Place) -> None:
    """Neither the spec nor who has set which of its fields, though the operator sends none of it."""
    made = place.apply(manifest())
    place.until_phase("Pending")
    found = place.job()

    assert found["spec"] == made["spec"]
    assert _set_by_its_author(found) == _set_by_its_author(made)


def _set_by_its_author(job: dict[str, Any]) -> list[dict[str, Any]]:
    return [each["fieldsV1"] for each in job["metadata"]["managedFields"] if each.get("subresource") != "status"]


def test_a_failed_run_says_why(place: Place, agents: StandInAgents) -> None:
    """The cause, the rank and the log's end of the agents' last record are in the condition."""
    agents.answer = told()
    place.train(manifest())
    place.end("job-0-0-0", 82, record(82, cause="nonfinite", rank=1, message="the loss is nan", tail="Traceback"))

    condition = _condition(place.until_phase("Failed"), "Failed")

    assert condition["reason"] == "NonFinite"
    assert condition["message"] == "the loss is nan (rank 1)\nTraceback"


def test_a_job_that_does_not_fit_makes_no_pod_of_its_hosts(place: Place) -> None:
    """Its plan's pod is the only one; taken out, the job starts all the same."""
    place.apply(manifest(preflight="plan"))
    place.until_pods("job-plan-0")
    place.until("it to say so", lambda: place.status().get("reason") == "Planning")
    place.run("job-plan-0")
    place.end("job-plan-0", 83, verdict(fits=False, change="hardware.topology=4x2: 1.5 GiB of 2.0 GiB"))
    place.until("the verdict", lambda: place.status().get("reason") == "NotFitting")
    condition = _condition(place.status(), "Fits")

    assert set(place.pods()) == {"job-plan-0"}
    assert place.status()["phase"] == "Pending"
    assert place.status()["hosts"] == {"ready": 0, "of": 2, "summary": "0/2"}
    assert condition["status"] == "False"
    assert condition["message"].startswith("peak 3.0 GiB a device of 2.0 GiB; what makes it fit: hardware.topology=4x2")
    place.change("job", preflight=None)
    place.until_pods("job-plan-0", "job-0-0-0", "job-0-1-0")


def test_a_job_that_fits_trains_and_is_not_planned_again(place: Place, agents: StandInAgents) -> None:
    """Also where its plan's first pod is deleted; a suspend and a resume later it starts at once."""
    agents.answer = told()
    place.apply(manifest(preflight="plan"))
    place.until_pods("job-plan-0")
    place.remove("job-plan-0")
    place.until_pods("job-plan-1")
    place.run("job-plan-1")
    place.end("job-plan-1", 0, verdict())
    place.until_pods("job-plan-1", "job-0-0-0", "job-0-1-0")
    place.run("job-0-0-0", "job-0-1-0")
    status = place.until_phase("Running")

    assert _condition(status, "Fits")["status"] == "True"
    assert status["hosts"]["ready"] == 2
    assert status["restartCount"] == 0
    place.change("job", suspend=True)
    place.until("the request", lambda: agents.stopped)
    for pod in ("job-0-0-0", "job-0-1-0"):
        place.end(pod, 80, record(80, step=37, message="saved and stopped"))
    place.until_phase("Suspended")
    place.until_pods()
    place.change("job", suspend=False)
    place.until_pods("job-0-0-1", "job-0-1-1")


def test_a_lost_pod_is_replaced_alone(place: Place, agents: StandInAgents) -> None:
    """The other pod stays as it is; the new one has a new name, and owns the policy."""
    agents.answer = told()
    place.train(manifest())
    kept = place.pods()["job-0-1-0"]["metadata"]["uid"]
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    place.end("job-0-0-0", 137, conditions=[evicted])
    place.until_pods("job-0-0-0", "job-0-0-1", "job-0-1-0")

    status = place.until_phase("Recovering")

    assert status["restarts"] == {"eviction": 1}
    assert status["attempts"] == {"0-0": 1, "0-1": 0}
    assert place.pods()["job-0-1-0"]["metadata"]["uid"] == kept
    place.bind("job-0-0-1", "node-b")
    place.report("job-0-0-1", phase="Running", podIP="192.0.2.77")
    place.until_phase("Running")
    policy = place.path("networkpolicies", "job-shardwise", "apis/networking.k8s.io/v1")
    successor = place.pods()["job-0-0-1"]["metadata"]["uid"]
    place.until(
        "the owner", lambda: place.client.request("GET", policy)["metadata"]["ownerReferences"][1]["uid"] == successor
    )


def test_suspend_saves_and_resume_goes_on(place: Place, agents: StandInAgents) -> None:
    """Host 0 is asked for a save; the pods go when they have ended; a resume makes pods of new names in a new round."""
    agents.answer = told()
    place.train(manifest())
    place.change("job", suspend=True)
    place.until_phase("Suspending")
    place.until("the request", lambda: agents.stopped)
    for pod in place.pods():
        place.end(pod, 80, record(80, step=37, message="saved and stopped"))
    place.until_phase("Suspended")
    place.until_pods()

    place.change("job", suspend=False)
    place.until_pods("job-0-0-1", "job-0-1-1")
    status = place.until_phase("Pending")

    assert status["round"] == 1
    assert status["progress"]["step"] == 37
    assert place.there("configmaps", "job-shardwise-1")


def test_a_finished_job_is_removed_after_its_time(place: Place) -> None:
    """After ttlAfterFinished the job is deleted, and by the garbage collector all that is its own."""
    place.apply(manifest(ttlAfterFinished="1s"))
    place.until_pods("job-0-0-0", "job-0-1-0")
    place.run("job-0-0-0", "job-0-1-0")
    for pod in place.pods():
        place.end(pod, 0, record(0))
    path = "apis/shardwise.dev/v1alpha1"
    place.until("the end of the job", lambda: not place.there("trainingjobs", "job", path))
    place.until_pods()


@pytest.mark.usefixtures("operator")
def test_a_deleted_job_is_guarded_while_it_saves(place: Place, agents: StandInAgents) -> None:
    """The garbage collector takes the ConfigMap at once, and the NetworkPolicy when host 0 is gone."""
    networking = "apis/networking.k8s.io/v1"
    agents.answer = told()
    place.train(manifest())
    policy = place.path("networkpolicies", "job-shardwise", networking)
    place.until("two owners", lambda: len(place.client.request("GET", policy)["metadata"]["ownerReferences"]) == 2)

    place.client.request("DELETE", place.path("trainingjobs", "job", "apis/shardwise.dev/v1alpha1"))
    # The collector seeks new kinds rarely.
    wait("its end", lambda: not place.there("configmaps", "job-shardwise-0"), seconds=90)
    place.until("one owner", lambda: len(place.client.request("GET", policy)["metadata"]["ownerReferences"]) == 1)
    place.remove("job-0-0-0")

    place.until("the policy's end", lambda: not place.there("networkpolicies", "job-shardwise", networking))


def test_a_start_costs_few_requests(place: Place, agents: StandInAgents, operator: Operator) -> None:
    """Nothing is asked for that the caches know, nothing is made twice, and few changes are worth a status write."""
    agents.answer = told()
    place.train(manifest())
    place.until("the policy's owners", lambda: operator.requests("patch") > 0)

    assert operator.requests("create", but=("leases", "events")) == 5
    assert operator.requests("create", but=("leases",)) <= 8
    assert operator.requests("get", but=("leases",)) == 0
    assert operator.requests("update_status") <= 5
    assert operator.requests("patch") <= 2  # the NetworkPolicy, again where the cache lags
    assert operator.requests("delete") == 0
