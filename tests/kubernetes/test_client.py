"""The command line against a cluster: submit, logs --follow, status, of a job whose pods are real.

Only here there are logs of pods; all else of `shardwise.client` is in tests/client.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.cluster.cluster import Cluster
from tests.kubernetes.jobs import STEPS, Job, small

from shardwise.job.document import write_document

COMMAND = [sys.executable, "-m", "shardwise.cli.app"]
HOST_0 = "cpu-two-hosts-0-0-0"


def test_submitted_and_followed(
    apply: Callable[[Mapping[str, Any]], Job], cluster: Cluster, cluster_namespace: str, tmp_path: Path
) -> None:
    """`logs --follow` tells the steps of host 0 as they are taken, goes on with the pod that replaces it, and ends."""
    environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig), "COLUMNS": "200"}
    here = ("--namespace", cluster_namespace)
    example = small(steps=STEPS, checkpoint={"everySteps": 20})
    path, log = tmp_path / "job.yaml", tmp_path / "log"
    path.write_text(write_document(example), encoding="utf-8")

    def shardwise(*words: str) -> str:
        return subprocess.run([*COMMAND, *words], env=environment, check=True, capture_output=True, text=True).stdout

    assert f"tj/cpu-two-hosts submitted to namespace {cluster_namespace}" in shardwise("submit", str(path), *here)
    job = apply(example)  # of what is there already, so that it is cleared away in the end
    with log.open("w", encoding="utf-8") as written:
        words = [*COMMAND, "logs", "tj/cpu-two-hosts", "--follow", *here]
        followed = subprocess.Popen(words, env=environment, stdout=written)
    job.until("its first step to be told", lambda: f"step 1/{STEPS}" in log.read_text())
    job.until_taken(30)
    job.kubectl("delete", "pod", HOST_0, "--wait=false")
    job.until_phase("Complete", 600)

    assert followed.wait(120) == 0
    assert f"step {STEPS}/{STEPS}" in log.read_text()
    assert "cpu-two-hosts-0-0-1" in {pod["metadata"]["name"] for pod in job.all_pods}
    known = json.loads(shardwise("status", "tj/cpu-two-hosts", "--json", *here))
    assert (known["phase"], known["progress"]["step"]) == ("Complete", STEPS)
    assert "Complete" in shardwise("status", "tj/cpu-two-hosts", *here)
