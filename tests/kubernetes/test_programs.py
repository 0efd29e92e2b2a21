"""An own program in pods: the same image, agents and operator, and a script from a ConfigMap."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.cluster import Cluster
from tests.kubernetes.jobs import ROOT, STATUS, Job, manifest, train_here

Apply = Callable[[Mapping[str, Any]], Job]

SCRIPT = ROOT / "examples" / "programs" / "equinox_sine.py"
HOST_0, HOST_1 = "own-program-0-0-0", "own-program-0-1-0"


def test_an_own_program(apply: Apply, cluster: Cluster, cluster_namespace: str, tmp_path: Path) -> None:
    """Two pods run it as `shardwise run` does, though one process is killed: digest and losses are the same."""
    files = f"--from-file={SCRIPT}"
    cluster.client.kubectl("--namespace", cluster_namespace, "create", "configmap", "own-program", files)
    example = manifest("own-program")
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

    example["spec"]["program"] = {"command": [sys.executable, str(SCRIPT)], "args": example["spec"]["program"]["args"]}
    here = train_here(example, tmp_path / "here")
    assert (finished["digest"], job.losses) == (here.digest, here.losses)
    assert finished["restarts"]["failure"] == 1
    assert finished["checkpoint"]["step"] == finished["progress"]["step"] == steps
