"""Runs the containers of the chart as processes of this machine, where the API server has no nodes. For tests.

A stand-in for the Job controller and the kubelet, and nothing else is pretended: each process speaks to the real API
server as the service account of its pod, with its real role, and the command, arguments and mounts are the pod's.
"""

import base64
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.client import Client, RefusedError

_PROGRAMS = {"python": sys.executable, "shardwise-operator": str(Path(sys.executable).parent / "shardwise-operator")}
_POLL_SECONDS = 0.2

Pod = dict[str, Any]


def command(client: Client, folder: Path, namespace: str, pod: Pod) -> tuple[list[str], Mapping[str, str]]:
    """The command line and the variables of a pod's one container, with its ConfigMaps and Secrets below `folder`."""
    container = pod["containers"][0]
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    words = [*container["command"], *container.get("args", [])]
    for mount in container.get("volumeMounts", []):
        entries = _entries(client, namespace, volumes[mount["name"]])
        if entries:
            place = folder / mount["name"]
            place.mkdir(exist_ok=True)
            for name, content in entries.items():
                (place / name).write_bytes(content)
            words = [word.replace(mount["mountPath"], str(place)) for word in words]
    kubeconfig = _kubeconfig(client, folder, namespace, pod["serviceAccountName"])
    return [_PROGRAMS[words[0]], *words[1:]], {**os.environ, "KUBECONFIG": str(kubeconfig)}


@contextmanager
def replica_runs(client: Client, folder: Path, namespace: str, deployment: str) -> Iterator[subprocess.Popen[str]]:
    """Run one pod of a Deployment as a process with ports of its own; it writes `replica.log` in `folder`."""
    found = client.request("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/{deployment}")
    words, variables = command(client, folder, namespace, found["spec"]["template"]["spec"])
    words = [re.sub(r"address=:\d+", "address=127.0.0.1:0", word) for word in words]
    with (folder / "replica.log").open("w") as log:
        process = subprocess.Popen(words, env=variables, stdout=log, stderr=log, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def hooks_run(client: Client, folder: Path, namespace: str) -> Iterator[list[str]]:
    """Carry out every Job of the namespace that is made meanwhile; what they printed, by their order."""
    stop, printed = threading.Event(), list[str]()
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def carry_out() -> None:
        while not stop.wait(_POLL_SECONDS):
            for job in client.request("GET", path)["items"]:
                if "conditions" not in job["status"]:  # a failed hook's Job stays, for people to look at
                    words, variables = command(client, folder, namespace, job["spec"]["template"]["spec"])
                    ended = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
                    printed.append(ended.stdout + ended.stderr)
                    _finish(client, f"{path}/{job['metadata']['name']}/status", good=ended.returncode == 0)

    thread = threading.Thread(target=carry_out)
    thread.start()
    try:
        yield printed
    finally:
        stop.set()
        thread.join()


def _entries(client: Client, namespace: str, volume: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a ConfigMap, a Secret or several of them; of another volume none."""
    if several := volume.get("projected"):
        found = [_entries(client, namespace, source) for source in several["sources"]]
        return {name: content for entries in found for name, content in entries.items()}
    if source := volume.get("configMap"):
        found = client.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/{source['name']}")
        return {name: text.encode() for name, text in found["data"].items()}
    if source := volume.get("secret"):
        found = client.request("GET", f"/api/v1/namespaces/{namespace}/secrets/{source['secretName']}")
        return {name: base64.b64decode(text) for name, text in found["data"].items()}
    return {}


def _kubeconfig(client: Client, folder: Path, namespace: str, account: str) -> Path:
    """A way to the API server as the service account alone."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    token = client.request("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    config = yaml.safe_load(client.kubeconfig.read_text(encoding="utf-8"))
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    written = folder / f"{account}.kubeconfig"
    written.write_text(yaml.safe_dump(config), encoding="utf-8")
    return written


def _finish(client: Client, path: str, *, good: bool) -> None:
    """Write what the Job controller writes; a Job that its hook policy removed already needs no word."""
    now = "2026-01-01T00:00:00Z"
    kinds = ("SuccessCriteriaMet", "Complete") if good else ("FailureTarget", "Failed")
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds]
    status = {"startTime": now, "conditions": conditions} | ({"completionTime": now, "succeeded": 1} if good else {})
    try:
        client.request("PATCH", path, {"status": status}, "application/merge-patch+json")
    except RefusedError as error:
        if error.status != 404:
            raise
