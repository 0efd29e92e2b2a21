"""Volumes that the pods of every node write to: a persistent volume and its claim, `runs` above all, in a namespace.

All nodes are one machine, so a folder of the cluster stands for the shared file system that a real cluster has.
"""

import json
from pathlib import Path

from tests.cluster.control_plane import client
from tests.cluster.places import VOLUME

CLAIM = "runs"
_NAMESPACE_LABEL = "test.shardwise.dev/claimed-in"


def make(namespace: str, claim: str = CLAIM) -> Path:
    """Make a claim and its volume in the namespace; the folder that stands behind it, writable by all."""
    folder = VOLUME / folder_name(namespace, claim)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)  # the pods of a job run as a user that owns nothing here
    manifest = json.dumps(objects(namespace, claim, folder))
    client().kubectl("apply", "--server-side", "--filename=-", stdin=manifest)
    return folder


def remove(namespace: str) -> None:
    """Remove what stands behind the namespace's claims; these go with it, and the folders with the cluster."""
    client().kubectl(*removal(namespace))


def removal(namespace: str) -> tuple[str, ...]:
    """The words to kubectl that remove all volumes of a namespace."""
    return "delete", "persistentvolume", f"--selector={_NAMESPACE_LABEL}={namespace}", "--wait=false"


def folder_name(namespace: str, claim: str) -> str:
    """Every namespace has runs of its own; other claims are one folder in all of them."""
    return namespace if claim == CLAIM else f".{claim}"


def objects(namespace: str, claim: str, folder: Path) -> dict[str, object]:
    """A volume and its claim in the namespace, as one list; a node sees the volume under `folder`."""
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    name = f"{claim}-{namespace}"
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {_NAMESPACE_LABEL: namespace}},
        "spec": {
            **common,
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {"namespace": namespace, "name": claim},
        },
    }
    bound = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim, "namespace": namespace},
        "spec": {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}},
    }
    return {"apiVersion": "v1", "kind": "List", "items": [volume, bound]}
