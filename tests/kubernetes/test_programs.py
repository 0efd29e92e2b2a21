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
HOST_0, HOST_1 = "own-program-0-0-0", "own-program-0-1-0"


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


def test_an_own_program(apply: Apply, example: dict[str, Any], tmp_path: Path) -> None:
    """Two pods run it as `shardwise run` does, though one process is killed: digest and losses are the same."""
    steps = int(example["spec"]["program"]["args"][0])
    job = apply(example)
    job.until_step(20)
    shown = job.status["progress"]
    assert float(shown["loss"]) == pytest.approx(job.losses[shown["step"]], abs=1e-4)
    assert len(job.pods) == 2
    said = json.loads(job.inside(HOST_0, STATUS))
    assert said["progress"]["of"] == steps
    assert not json.loads(job.inside(HOST_1, "import json, os; print(json.dumps(os.path.exists('/var/run/secrets')))"))
    job.inside(HOST_1, f"import os; os.kill({said['hosts'][1]['trainerPid']}, 9)")
    job.until("the restart", lambda: len(job.began) == 2)
    job.until_phase("Complete", 600)
    finished = job.status

    assert Ended(finished["digest"], job.losses) == here(example, tmp_path)
    assert finished["restarts"]["failure"] == 1
    assert finished["checkpoint"]["step"] == finished["progress"]["step"] == steps


def test_suspended_on_two_slices(apply: Apply, example: dict[str, Any], tmp_path: Path) -> None:
    """A suspend loses no step of it and gives both slices back; it goes on from there, to the same digest."""
    example["spec"]["hardware"] = {"accelerator": "cpu-sim", "topology": "1x2", "slices": 2}
    job = apply(example)
    job.until_step(20)
    slices = {pod["metadata"]["labels"]["shardwise.dev/slice"] for pod in job.all_pods}
    job.patch(suspend=True)
    job.kubectl("wait", "--for=condition=Suspended", f"tj/{job.name}", "--timeout=120s")
    saved = job.status["checkpoint"]["step"]
    assert slices == {"0", "1"}
    assert saved == max(job.losses)
    assert not job.pods

    job.patch(suspend=False)
    job.until_phase("Complete", 600)
    assert job.began == [0, saved]
    assert job.status.get("restarts", {}) == {}
    assert Ended(job.status["digest"], job.losses) == here(example, tmp_path)
