"""A plain Job of Kubernetes beside ours: one pod that runs `shardwise run` of the same file, with both hosts in it.

Nobody but the Job controller looks after it. Called by `in_cluster.py`.
"""

import json
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.faults.outcome import EQUAL, Outcome
from benchmarks.faults.pods import EVERY_STEPS, FAULT_STEP, STEPS, WITHIN_SECONDS
from benchmarks.faults.said import Said
from benchmarks.faults.stage import NAMESPACE, Stage, alone, stage
from tests.cluster.commands import wait
from tests.kubernetes.jobs import small

NODE_KILLED, POD_DELETED = "node killed, a plain Job", "pod deleted, a plain Job"
_NAME = "plain"
_NOTE = "one pod with both hosts in it, and with our tolerations of lost nodes"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=job-name={_NAME}"
_JOB = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{_NAME}"
_LOST_NODES = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    for taint in ("not-ready", "unreachable")
]


def measure(fault: str) -> Outcome:
    """Put a fault to the Job in a step, and wait for its end."""
    made, job = stage(), small(steps=STEPS, checkpoint={"everySteps": EVERY_STEPS})
    client, folder = made.cluster.client, made.volume / _NAME
    client.kubectl("apply", "--filename=-", stdin=json.dumps(_objects(made, job)))
    said = Said(folder)
    try:
        wait(f"step {FAULT_STEP}", lambda: len(said.steps) >= FAULT_STEP, WITHIN_SECONDS)
        (pod,) = client.request("GET", _PODS)["items"]
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        began = time.time()
        if fault == NODE_KILLED:
            made.cluster.kill_node(node)
        else:
            client.kubectl("--namespace", NAMESPACE, "delete", "pod", name, "--wait=false")
        wait("another pod", lambda: _others(made, name), WITHIN_SECONDS)
        noticed = time.time()
        wait("the end", lambda: client.request("GET", _JOB)["status"].get("succeeded"), WITHIN_SECONDS)
        said.end()
        next_step = said.next_step(began)
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        failed = client.request("GET", _JOB)["status"].get("failed", 0)
        return Outcome(
            detected_seconds=noticed - began,
            cause="none",
            charged=f"backoffLimit {failed}" if failed else "nothing",
            steps_lost=said.steps_lost,
            next_step_seconds={} if next_step is None else {"noticed": noticed - began, "pod": next_step - noticed},
            equal=EQUAL if summary["digest"] == alone(made, job).digest else "other bits",
            note=_NOTE,
        )
    finally:
        said.end()
        if fault == NODE_KILLED and node not in made.cluster.nodes:
            made.cluster.start_node(node)
        client.kubectl("--namespace", NAMESPACE, "delete", "job,configmap", _NAME, "--wait=true")
        made.cluster.erase(folder)


def _others(made: Stage, name: str) -> bool:
    return any(pod["metadata"]["name"] != name for pod in made.cluster.client.request("GET", _PODS)["items"])


def _objects(made: Stage, job: Mapping[str, Any]) -> dict[str, Any]:
    """The file and the Job."""
    run = {"hardware": job["spec"]["hardware"], "training": job["spec"]["training"]}
    container = {
        "name": "run",
        "image": made.image,
        "command": ["shardwise", "run", "/job/job.yaml", "--dir", f"/runs/{_NAME}"],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "SHARDWISE_CACHE", "value": "/tmp/cache"}],  # noqa: S108  the pod's own
        "resources": {"requests": {"cpu": "500m", "memory": "2Gi"}},
        "volumeMounts": [{"name": "job", "mountPath": "/job"}, {"name": "runs", "mountPath": "/runs"}],
    }
    volumes = [
        {"name": "job", "configMap": {"name": _NAME}},
        {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}},
    ]
    pod = {"restartPolicy": "Never", "tolerations": _LOST_NODES, "containers": [container], "volumes": volumes}
    metadata = {"name": _NAME, "namespace": NAMESPACE}
    file = json.dumps({**job, "spec": run})  # JSON is YAML
    spec = {"completionMode": "Indexed", "completions": 1, "parallelism": 1, "template": {"spec": pod}}
    objects = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"job.yaml": file}},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec},
    ]
    return {"apiVersion": "v1", "kind": "List", "items": objects}
