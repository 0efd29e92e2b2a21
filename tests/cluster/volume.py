"""A volume for runs that the pods of every node write to: a persistent volume and its claim `runs` in a namespace.

All nodes are one machine, so a folder of the cluster stands for the shared file system that a real cluster has. Each
namespace has a folder of its own.
"""

import json
from pathlib import Path

from tests.cluster.control_plane import client
from tests.cluster.places import VOLUME

CLAIM = "runs"


def make(namespace: str) -> Path:
    """Make the volume and the claim `runs` in the namespace; the folder that stands behind it, writable by all."""
    folder = VOLUME / namespace
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)  # the pods of a job run as a user that owns nothing here
    client().kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(objects(namespace, folder)))
    return folder


def remove(namespace: str) -> None:
    """Remove the volume; the claim goes with its namespace, and the folder with the cluster."""
    client().kubectl("delete", "persistentvolume", f"runs-{namespace}", "--ignore-not-found", "--wait=false")


def objects(namespace: str, folder: Path) -> dict[str, object]:
    """The volume and its claim `runs` in the namespace, as one list; a node sees the volume under `folder`."""
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"runs-{namespace}"},
        "spec": {
            **common,
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {"namespace": namespace, "name": CLAIM},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": namespace},
        "spec": {**common, "volumeName": f"runs-{namespace}", "resources": {"requests": {"storage": "1Gi"}}},
    }
    return {"apiVersion": "v1", "kind": "List", "items": [volume, claim]}
