"""The Workload of a job, and what is told about it."""

from typing import Any

import pytest
from tests.operator.building import NOW, UID, asking, begun, evicted, manifest, seen, snapshot, workload

from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.priority import Priority
from shardwise_operator.observe.queueing import Queueing
from shardwise_operator.observe.workload import Admission, read_workload
from shardwise_operator.render.workload import ended, released, running, shape, workload_manifest
from shardwise_operator.runtime.kinds import condition_of

_SINCE = "2026-11-01T00:00:00Z"


def _seen(job: dict[str, Any]) -> Observed:
    made_of = snapshot(job)
    return seen(begun(hosts=made_of.hosts), made_of=made_of)


def _made(job: dict[str, Any], priority: Priority = Priority()) -> dict[str, Any]:  # noqa: B008  frozen
    return workload_manifest(_seen(job), "team", priority)


def _agent(job: dict[str, Any]) -> dict[str, Any]:
    return {"resources": job["spec"]["pod"]["template"]["spec"]["containers"][0]["resources"]}


def test_all_hosts_of_all_slices_are_one_set() -> None:
    """Admitted together or not at all: there is no count that would do with less."""
    made = _made(manifest(hardware={"accelerator": "tpu-v5p", "topology": "2x2x2", "slices": 2}))
    (pods,) = made["spec"]["podSets"]

    assert made["spec"]["queueName"] == "team"
    assert (pods["count"], "minCount" in pods) == (4, False)
    assert pods["template"]["spec"]["containers"][0]["resources"]["requests"]["google.com/tpu"] == "4"
    assert pods["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "2x2x2"
    assert made["metadata"]["labels"]["kueue.x-k8s.io/job-uid"] == UID
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (UID, True)


def test_a_round_on_fewer_slices_has_the_workload_of_all() -> None:
    """Its quota is for the slices that are away, too, and it need not be admitted anew when they are back."""
    whole, fewer = (
        snapshot(manifest(hardware={"accelerator": "tpu-v5p", "topology": "2x2x2", "slices": slices}))
        for slices in (4, 2)
    )
    of_all = seen(begun(hosts=whole.hosts), made_of=whole, slice_counts=(4, 2))
    of_fewer = seen(begun(hosts=fewer.hosts, slices=2), made_of=fewer, slice_counts=(4, 2))

    made = workload_manifest(of_fewer, "team", Priority())
    assert made["spec"]["podSets"][0]["count"] == 8
    assert shape(of_fewer) == shape(of_all)


def test_only_what_a_queue_decides_by_is_in_it() -> None:
    """Neither variables nor mounts, which may be long; the requests of other containers count too."""
    side = {"name": "side", "image": "side:1", "resources": {"requests": {"cpu": "1"}}}
    made = _made(asking(manifest(), agent={"resources": {"requests": {"cpu": "2"}}}, initContainers=[side]))
    template = made["spec"]["podSets"][0]["template"]["spec"]

    assert [set(each) for each in template["containers"]] == [{"name", "image", "resources"}]
    assert template["initContainers"] == [side]
    assert "volumes" not in template
    assert "affinity" not in template


def test_a_priority_names_its_class() -> None:
    """Kueue refuses a class without the number."""
    of = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}

    assert _made(manifest(), Priority(7, of))["spec"]["priorityClassRef"] == of
    assert _made(manifest(), Priority(7, of))["spec"]["priority"] == 7
    assert "priorityClassRef" not in _made(manifest())["spec"]


def test_a_topology_is_asked_for_by_the_template() -> None:
    """With Kueue's own annotations; a slice is a part of the set that stays together."""
    job = manifest(hardware={"accelerator": "cpu-sim", "topology": "2x2", "slices": 2})
    required, per_slice = (f"kueue.x-k8s.io/podset-{kind}-topology" for kind in ("required", "slice-required"))
    job["spec"]["pod"]["template"]["metadata"] = {"annotations": {required: "block", per_slice: "rack"}}

    assert _made(job)["spec"]["podSets"][0]["topologyRequest"] == {
        "required": "block",
        "podSetSliceRequiredTopology": "rack",
        "podSetSliceSize": 2,
    }


def test_its_shape_is_what_the_job_asks_for() -> None:
    """It is noted when the Workload is made; what the queue gives to pods, and the image's digest, change nothing."""
    job = asking(manifest(), agent={"resources": {"requests": {"cpu": "2"}}})
    noted = _made(job)["metadata"]["annotations"]["shardwise.dev/shape"]
    given = Admission(node_selector={"pool": "a"}, tolerations=({"key": "a"},), domains=({"rack": "1"},) * 2)
    runs = begun(image="localhost/trainer@sha256:" + "0" * 64, attempts={"0-0": 3, "0-1": 3})
    later = seen(runs, made_of=snapshot(job), queueing=Queueing(queue="team", workload=workload(), admission=given))
    others = [
        asking(manifest(), agent={"resources": {"requests": {"cpu": "3"}}}),
        asking(manifest(hardware={"accelerator": "cpu-sim", "topology": "4x2"}), agent=_agent(job)),
        asking(manifest(), agent=_agent(job), nodeSelector={"pool": "b"}),
    ]

    assert shape(later) == noted
    assert noted not in {shape(_seen(each)) for each in others}


def test_what_was_given_back_is_not_admitted() -> None:
    """No quota, no admission; preempted, it is in the queue again at once, as Kueue's own jobs are."""
    conditions = [
        {"type": "Evicted", "status": "True", "reason": "Preempted", "lastTransitionTime": _SINCE},
        {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "lastTransitionTime": _SINCE},
    ]
    status = {"admission": {"clusterQueue": "c"}, "conditions": conditions, "admissionChecks": [1]}
    raw = {"metadata": {"name": "w", "generation": 3, "resourceVersion": "7"}, "status": status}
    before = evicted(raw=raw).workload
    assert before is not None

    told = released(before, NOW)

    assert "admission" not in told["status"]
    assert told["status"]["admissionChecks"] == [1]
    assert told["metadata"]["resourceVersion"] == "7"
    assert condition_of(told, "Evicted") == conditions[0]
    assert condition_of(told, "QuotaReserved")["status"] == "False"
    assert condition_of(told, "QuotaReserved")["observedGeneration"] == 3
    assert condition_of(told, "QuotaReserved")["message"] == "Preempted to accommodate a workload"
    assert condition_of(told, "Admitted")["status"] == "False"
    assert condition_of(told, "Requeued")["status"] == "True"


def test_a_deactivated_one_is_not_queued_again() -> None:
    """Kueue does so when somebody activates it."""
    told = released(workload(evicted="Deactivated"), NOW)

    assert condition_of(told, "Requeued")["status"] == "False"


def test_an_end_and_a_start_are_told() -> None:
    """With the words of the job."""
    finished = condition_of(ended(workload(), complete=False, message="the loss is nan", now=NOW), "Finished")

    assert (finished["status"], finished["reason"], finished["message"]) == ("True", "Failed", "the loss is nan")
    assert condition_of(running(workload(), ready=True, now=NOW), "PodsReady")["status"] == "True"


@pytest.mark.parametrize(
    ("before", "ready", "reason"),
    [
        ({}, False, "WaitForStart"),
        ({}, True, "Started"),
        ({"pods_ready": True}, False, "WaitForRecovery"),
        ({"recovers": True}, True, "Recovered"),
    ],
)
def test_a_loss_is_told_apart_from_a_start(*, before: dict[str, bool], ready: bool, reason: str) -> None:
    """Kueue has a time for each of them; what it is told is read as it was meant."""
    told = running(workload(**before), ready=ready, now=NOW)

    assert condition_of(told, "PodsReady")["reason"] == reason
    known = read_workload({**told, "metadata": {"name": "job", "uid": "uid"}})
    assert (known.pods_ready, known.recovers) == (ready, reason == "WaitForRecovery")
