"""A job of real pods in a queue of a real Kueue trains as if nothing had happened: preempted, or without a slice."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import kueue
from tests.cluster.bare import Bare
from tests.cluster.cluster import Cluster
from tests.kubernetes.jobs import ENDLESS, STEPS, Ended, Job, small
from tests.kubernetes.places import Places
from tests.kubernetes.release import Release
from tests.operator.operating import Place
from tests.operator.queues import QUEUE, Queues

Here = Callable[[Mapping[str, Any]], Ended]
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_BEFORE = 20
_CPUS = 2


@pytest.fixture
def queues(bare: Bare, release: Release, cluster_namespace: str, tmp_path: Path) -> Iterator[Queues]:
    """Return a queue with room for one job of the namespace; operator and Kueue know of each other."""
    with kueue.operating(bare.client, tmp_path):
        release.upgrade(**{"kueue.enabled": "true"})
        made = Queues(Place(bare.client, cluster_namespace), _CPUS, nodeLabels={}, tolerations=[])
        yield made
        made.remove()


def _queued(name: str, priority: str, **training: Any) -> dict[str, Any]:
    """A job of two hosts that takes all of the queue."""
    job = small(**training)
    labels = {_QUEUE_LABEL: QUEUE, "kueue.x-k8s.io/priority-class": priority}
    job["metadata"] = {"name": name, "labels": labels}
    job["spec"]["pod"]["directory"] = f"/runs/{name}"
    job["spec"]["pod"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = f"{_CPUS * 500}m"
    return job


def test_a_preempted_job_takes_every_step_once(
    queues: Queues, bare: Bare, cluster_namespace: str, runs_volume: Path, here: Here
) -> None:
    """It saves before its pods go, waits for the other one's end, and comes to the bits of a run that went through."""
    longer = _queued("longer", queues.priority("low"), steps=STEPS)
    job = Job(bare.client, cluster_namespace, runs_volume, longer)
    job.until_taken(_BEFORE)
    urgent = Job(bare.client, cluster_namespace, runs_volume, _queued("urgent", queues.priority("high"), steps=5))
    job.until("it to wait", lambda: (job.phase, job.status.get("reason")) == ("Pending", "Evicted"))
    job.until("the pods of the urgent one", lambda: urgent.pods)
    assert job.pods == {}
    print(job.kubectl("get", "tj", "--output=wide"))  # noqa: T201  docs/queues.md shows it
    print(job.kubectl("get", "workloads"))  # noqa: T201  docs/queues.md shows it
    urgent.until_phase("Complete")
    job.until_phase("Complete")

    assert job.taken == list(range(1, STEPS + 1))
    assert Ended(job.status["digest"], job.losses) == here(longer)
    assert job.status["restartCount"] == 0
    for each in (job, urgent):
        each.delete()


@pytest.mark.long
def test_a_job_on_fewer_slices_keeps_its_quota(
    queues: Queues, bare: Bare, whole_cluster: Cluster, cluster_namespace: str, runs_volume: Path, here: Here
) -> None:
    """One slice of two goes on by the admission of both, so no other job takes the place that the second comes back to.

    On whichever slices a step was taken, its loss is that of the same step on one machine.
    """
    places = Places(whole_cluster, f"places-{cluster_namespace}")
    for node in places.nodes:
        places.open(node)
    wanted = places.job(ENDLESS, minSlices=1, replaceWithin="5s")
    low = queues.priority("low")
    wanted["metadata"] = {"name": "sliced", "labels": {_QUEUE_LABEL: QUEUE, "kueue.x-k8s.io/priority-class": low}}
    wanted["spec"]["pod"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = f"{_CPUS * 500}m"
    job = Job(bare.client, cluster_namespace, runs_volume, wanted)
    job.until_taken(_BEFORE)
    (admitted,) = _workloads(job)
    lost = next(pod for pod in job.all_pods if pod["metadata"]["labels"]["shardwise.dev/slice"] == "1")
    places.close(lost["spec"]["nodeName"])
    job.kubectl("delete", "pod", lost["metadata"]["name"], "--wait=false")
    job.until("one slice to go on", lambda: job.status.get("slices") == 1 and job.phase == "Running")
    other = Job(bare.client, cluster_namespace, runs_volume, _queued("other", low, steps=5))
    other.until("it to wait", lambda: other.phase == "Pending")
    job.until_taken(len(job.taken) + _BEFORE)
    assert other.pods == {}

    places.open(lost["spec"]["nodeName"])
    job.until("both slices to go on", lambda: "slices" not in job.status and job.phase == "Running")
    job.until_taken(max(STEPS, len(job.taken)) + 10)
    assert admitted in _workloads(job)
    assert job.status["losses"] == {"unknown": 1}
    expected = here(places.job(STEPS, minSlices=1, replaceWithin="5s")).losses
    assert [job.losses[step] for step in expected] == pytest.approx([*expected.values()], rel=1e-4)
    for each in (other, job):
        each.delete()
    for node in places.nodes:
        places.close(node)


def _workloads(job: Job) -> list[str]:
    """The identifiers of what Kueue has admitted of a job's namespace."""
    found = job.kubectl("get", "workloads", "--output=json")
    return [
        each["metadata"]["uid"]
        for each in json.loads(found)["items"]
        if any(one["type"] == "Admitted" and one["status"] == "True" for one in each["status"].get("conditions", []))
    ]
