"""What there is beside ours, a Job, a JobSet and a RayCluster: one pod that runs `shardwise run` with both hosts in it.

Nobody but the controllers of the three looks after it. Called by `in_cluster.py`.
"""

import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import Any

from benchmarks.faults import kuberay
from benchmarks.faults.outcome import EQUAL, Outcome
from benchmarks.faults.pods import EVERY_STEPS, FAULT_STEP, STEPS, WITHIN_SECONDS
from benchmarks.faults.said import Said
from benchmarks.faults.stage import NAMESPACE, Stage, alone, stage
from benchmarks.operator import jobset
from tests.cluster.commands import wait
from tests.kubernetes.jobs import small

from shardwise.protocol.contract import SUMMARY

NODE_KILLED, POD_DELETED = "node killed", "pod deleted"
_NAME = "peer"
_NOTE = "one pod with both hosts in it, and with our tolerations of lost nodes"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=shardwise.dev/peer={_NAME}"
_JOB = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{_NAME}"
_JOB_SET = f"{jobset.path(NAMESPACE)}/{_NAME}"
_LOST_NODES = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    for taint in ("not-ready", "unreachable")
]


class Kind(Enum):
    """The kinds, as docs/faults.md names them."""

    JOB = "plain Job"
    JOB_SET = f"JobSet ({jobset.VERSION})"
    RAY_CLUSTER = f"RayCluster (KubeRay {kuberay.MODULE.version})"


def measure(kind: Kind, fault: str) -> Outcome:
    """Put a fault to the pod in a step, and wait for the end."""
    made, job = stage(), small(steps=STEPS, checkpoint={"everySteps": EVERY_STEPS})
    client, folder = made.cluster.client, made.volume / _NAME
    with ExitStack() as stack:
        if kind is Kind.JOB_SET:
            stack.enter_context(jobset.operating(client, Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        if kind is Kind.RAY_CLUSTER:
            stack.enter_context(kuberay.operating(client))
        stack.callback(made.cluster.erase, folder)
        objects = json.dumps(_objects(kind, made, job))
        stack.callback(client.kubectl, "delete", "--filename=-", "--wait=true", stdin=objects)
        client.kubectl("apply", "--filename=-", stdin=objects)
        said = Said(folder)
        stack.callback(said.end)

        wait(f"step {FAULT_STEP}", lambda: len(said.steps) >= FAULT_STEP, WITHIN_SECONDS)
        (pod,) = client.request("GET", _PODS)["items"]
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        began = time.time()
        if fault == NODE_KILLED:
            stack.callback(made.cluster.start_node, node)
            made.cluster.kill_node(node)
        else:
            client.kubectl("--namespace", NAMESPACE, "delete", "pod", name, "--wait=false")
        wait("another pod", lambda: _others(made, name), WITHIN_SECONDS)
        noticed = time.time()
        wait("the end", lambda: _complete(kind, made, folder), WITHIN_SECONDS)
        said.end()

        next_step, charged = said.next_step(began), _charged(kind, made)
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        return Outcome(
            detected_seconds=noticed - began,
            cause="none",
            charged=charged,
            steps_lost=said.steps_lost,
            next_step_seconds={} if next_step is None else {"noticed": noticed - began, "pod": next_step - noticed},
            equal=EQUAL if summary["digest"] == alone(made, job).digest else "other bits",
            note=_NOTE,
        )


def _others(made: Stage, name: str) -> bool:
    return any(pod["metadata"]["name"] != name for pod in made.cluster.client.request("GET", _PODS)["items"])


def _complete(kind: Kind, made: Stage, folder: Path) -> bool:
    """Whether it has ended well.

    Raises:
        AssertionError: it has ended badly.
    """
    if kind is Kind.RAY_CLUSTER:  # it has no end of its own: a head that has ended is made again
        summary = folder / SUMMARY
        return summary.exists() and json.loads(summary.read_text(encoding="utf-8")).get("status") == "complete"
    if kind is Kind.JOB:
        return bool(made.cluster.client.request("GET", _JOB)["status"].get("succeeded"))
    status = made.cluster.client.request("GET", _JOB_SET).get("status", {})
    assert status.get("terminalState") != "Failed", status
    return bool(status.get("terminalState") == "Completed")


def _charged(kind: Kind, made: Stage) -> str:
    if kind is Kind.RAY_CLUSTER:
        return "nothing"  # it makes a head again as often as it ends
    if kind is Kind.JOB:
        name, count = "backoffLimit", made.cluster.client.request("GET", _JOB)["status"].get("failed", 0)
    else:
        name, count = "maxRestarts", made.cluster.client.request("GET", _JOB_SET)["status"].get("restarts", 0)
    return f"{name} {count}" if count else "nothing"


def _objects(kind: Kind, made: Stage, job: Mapping[str, Any]) -> dict[str, Any]:
    """The file, and the Job or the JobSet."""
    metadata = {"name": _NAME, "namespace": NAMESPACE}
    run = {"hardware": job["spec"]["hardware"], "training": job["spec"]["training"]}
    file = json.dumps({**job, "spec": run})  # JSON is YAML
    template = {"metadata": {"labels": {"shardwise.dev/peer": _NAME}}, "spec": _pod(made)}
    if kind is Kind.JOB:
        spec = {"completionMode": "Indexed", "completions": 1, "parallelism": 1, "template": template}
        work = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    elif kind is Kind.RAY_CLUSTER:
        work = kuberay.ray_cluster(_NAME, template, NAMESPACE)
    else:
        work = jobset.job_set(_NAME, 1, template, NAMESPACE)
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"job.yaml": file}}
    return {"apiVersion": "v1", "kind": "List", "items": [config, work]}


def _pod(made: Stage) -> dict[str, Any]:
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
    return {"restartPolicy": "Never", "tolerations": _LOST_NODES, "containers": [container], "volumes": volumes}
