"""An own program in pods: the same image, agents and operator, and a script from a ConfigMap."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.cluster import Cluster
from tests.kubernetes.jobs import ROOT, STATUS, Ended, Job, manifest, train_here

Apply = Callable[[Mapping[str, Any]], Job]

SCRIPT = ROOT / "examples" / "programs" / "equinox_sine.py"
STEPS = 1000
"""As many as it takes on a fast machine until all has been done to it."""
HOST_0, HOST_1 = "own-program-0-0-0", "own-program-1-0-0"


@pytest.fixture
def example(cluster: Cluster, cluster_namespace: str) -> dict[str, Any]:
    """Return the example's job; its script is in the cluster."""
    files = f"--from-file={SCRIPT}"
    cluster.client.kubectl("--namespace", cluster_namespace, "create", "configmap", "own-program", files)
    return manifest("own-program")


def here(example: dict[str, Any], folder: Path) -> Ended:
    """Run the example's script on this machine, on as many simulated hosts."""
    words = {"command": [sys.executable, str(SCRIPT)], "args": example["spec"]["program"]["args"]}
    return train_here({**example, "spec": {**example["spec"], "program": words}}, folder / "here")


def evict(cluster: Cluster, namespace: str, pod: str) -> None:
    """Put a pod out as a node's drain does."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
    cluster.client.request("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", eviction)


def test_whatever_is_done_to_it(
    apply: Apply, cluster: Cluster, cluster_namespace: str, example: dict[str, Any], tmp_path: Path
) -> None:
    """Pods on two slices run it as `shardwise run` does on this machine: digest and losses are the same.

    A process is killed, and it goes on from the newest checkpoint. A pod is evicted, and the job suspended: the
    processes save before they end, no step is lost, and a suspended job gives both slices back.
    """
    example["spec"]["hardware"] = {"accelerator": "cpu-sim", "topology": "1x2", "slices": 2}
    example["spec"]["program"]["args"] = [str(STEPS)]
    job = apply(example)
    job.until_step(20)
    shown = job.status["progress"]
    assert float(shown["loss"]) == pytest.approx(job.losses[shown["step"]], abs=1e-4)
    assert {pod["metadata"]["labels"]["shardwise.dev/slice"] for pod in job.all_pods} == {"0", "1"}
    assert list(job.pods) == [HOST_0, HOST_1]
    said = json.loads(job.inside(HOST_0, STATUS))
    assert said["progress"]["of"] == STEPS
    assert not json.loads(job.inside(HOST_1, "import json, os; print(json.dumps(os.path.exists('/var/run/secrets')))"))
    job.inside(HOST_1, f"import os; os.kill({said['hosts'][1]['trainerPid']}, 9)")
    job.until("the restart", lambda: len(job.began) == 2)

    taken = len(job.taken)
    job.until_taken(taken + 20)
    evict(cluster, cluster_namespace, HOST_1)
    job.until("the other pod of the slice to train", lambda: len(job.began) == 3)
    assert HOST_1 not in job.pods
    job.until_taken(len(job.taken) + 20)
    job.patch(suspend=True)
    job.kubectl("wait", "--for=condition=Suspended", f"tj/{job.name}", "--timeout=120s")
    saved = job.status["checkpoint"]["step"]
    assert saved == job.taken[-1]
    assert not job.pods

    job.patch(suspend=False)
    job.until_phase("Complete", 600)
    finished = job.status
    assert Ended(finished["digest"], job.losses) == here(example, tmp_path)
    assert job.taken[taken:] == list(range(job.taken[taken], STEPS + 1)), "the eviction or the suspend has lost a step"
    assert job.began[-1] == saved
    assert finished["restarts"] == {"failure": 1, "eviction": 1}
    assert finished["checkpoint"]["step"] == finished["progress"]["step"] == STEPS
