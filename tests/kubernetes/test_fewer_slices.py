"""A job that may go on with fewer slices, on a real cluster: a slice's place is taken away, and later there again.

Only here operator, scheduler, kubelet, launcher and trainer do it together; what else may befall such a job is in
`tests/operator/test_fewer_slices.py`, in simulated time.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from tests.cluster.cluster import Cluster
from tests.kubernetes.jobs import ENDLESS, STEPS, Ended, Job
from tests.kubernetes.places import Places

Apply = Callable[[Mapping[str, Any]], Job]
Here = Callable[[Mapping[str, Any]], Ended]


@pytest.fixture
def places(_chart: Cluster, cluster: Cluster, cluster_namespace: str) -> Iterator[Places]:
    """Return two places that are open."""
    made = Places(cluster, f"places-{cluster_namespace}")
    for node in made.nodes:
        made.open(node)
    yield made
    for node in made.nodes:
        made.close(node)


@pytest.mark.long  # tests/operator/test_fewer_slices.py decides so, tests/hosts/test_same_run.py goes on elsewhere
def test_a_slice_is_left_out_and_taken_in_again(places: Places, apply: Apply, here: Here) -> None:
    """One slice goes on from the checkpoint; once the other has its place again the run saves and goes on with both.

    On whichever slices a step was taken, its loss is that of the same step on one machine.
    """
    recovery = {"minSlices": 1, "replaceWithin": "5s"}
    job = apply(places.job(ENDLESS, **recovery))
    job.until_taken(30)
    placed = {pod["metadata"]["labels"]["shardwise.dev/slice"]: pod for pod in job.all_pods}
    node = placed["1"]["spec"]["nodeName"]
    places.close(node)
    job.kubectl("delete", "pod", placed["1"]["metadata"]["name"], "--wait=false")

    job.until("one slice to go on", lambda: job.status.get("slices") == 1 and job.phase == "Running")
    job.until("a placeholder to wait", lambda: "placeholder" in _waiting(job))
    assert job.status["hosts"]["summary"] == "1/2"
    assert job.began[-1] > 0
    job.kubectl("wait", "--for=condition=FewerSlices", f"tj/{job.name}", "--timeout=10s")
    places.open(node)
    job.until("both slices to go on", lambda: "slices" not in job.status and job.phase == "Running")
    job.until_taken(max(STEPS, len(job.taken)) + 10)
    assert job.status["losses"] == {"unknown": 1}, "one pod was deleted; what came of it costs no more"
    assert len(job.began) == 3
    saved = job.taken.index(job.began[2])
    assert job.taken[saved + 1] == job.began[2] + 1, "the run has saved what it had taken"
    expected = here(places.job(STEPS, **recovery)).losses
    assert [job.losses[step] for step in expected] == pytest.approx([*expected.values()], rel=1e-4)


def _waiting(job: Job) -> str:
    """The commands of pods that have no node."""
    pods = [pod for pod in job.all_pods if "nodeName" not in pod["spec"]]
    return json.dumps([pod["spec"]["containers"][0]["command"] for pod in pods])
