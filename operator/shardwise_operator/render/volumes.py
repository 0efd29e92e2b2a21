"""The volumes of a pod and where its container sees them: the job's own, the class's, and those of every pod."""

from collections.abc import Iterable
from typing import Any

from shardwise.job.spec.accelerator import HostPath
from shardwise.protocol.pods import JOB_MOUNT, LOCAL_FOLDER, SCRATCH_MOUNT, TOKEN_MOUNT
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.snapshot import Snapshot
from shardwise_operator.render.names import config_map_name, secret_name

# Readable by the container's group alone.
_TOKEN_MODE = 0o440
_LOCAL = "shardwise-local"


def volumes(seen: Observed, snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return every volume of a pod."""
    assert seen.state.round is not None
    shared = snapshot.machine.spec.shared_memory
    memory = {"medium": "Memory"} | ({"sizeLimit": str(shared)} if shared else {})
    token = {"secretName": secret_name(seen.name, seen.uid), "defaultMode": _TOKEN_MODE}
    ours: list[dict[str, Any]] = [
        {"name": "shardwise-job", "configMap": {"name": config_map_name(seen.name, seen.state.round)}},
        {"name": "shardwise-tokens", "secret": token},
        {"name": "shardwise-scratch", "emptyDir": {}},
        {"name": "shardwise-tmp", "emptyDir": {}},
        {"name": "shardwise-shm", "emptyDir": memory},
    ]
    if _saves_locally(snapshot):
        # Not in /dev/shm, which libraries of the accelerators need room in.
        ours.append({"name": _LOCAL, "emptyDir": {"medium": "Memory"}})
    spec = snapshot.machine.spec
    owners = [("", spec.host_paths), *((f"{sidecar.name}-", sidecar.host_paths) for sidecar in spec.sidecars)]
    machine = [
        {"name": f"machine-{owner}{path.name}", "hostPath": {"path": path.path}}
        for owner, paths in owners
        for path in paths
    ]
    return [*ours, *machine, *snapshot.pod.spec.get("volumes", [])]


def volume_mounts(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return where the container sees them."""
    ours: list[dict[str, Any]] = [
        {"name": "shardwise-job", "mountPath": JOB_MOUNT, "readOnly": True},
        {"name": "shardwise-tokens", "mountPath": TOKEN_MOUNT, "readOnly": True},
        {"name": "shardwise-scratch", "mountPath": SCRATCH_MOUNT},
        {"name": "shardwise-tmp", "mountPath": "/tmp"},  # noqa: S108  the folder in the container
        {"name": "shardwise-shm", "mountPath": "/dev/shm"},  # noqa: S108  as above
    ]
    if _saves_locally(snapshot):
        ours.append({"name": _LOCAL, "mountPath": f"{SCRATCH_MOUNT}/{LOCAL_FOLDER}"})
    machine = host_mounts("", snapshot.machine.spec.host_paths)
    return [*ours, *machine, *snapshot.pod.agent.get("volumeMounts", [])]


def _saves_locally(snapshot: Snapshot) -> bool:
    training = snapshot.job.spec.training_if_any
    return training is not None and training.checkpoint.local is not None


def host_mounts(owner: str, paths: Iterable[HostPath]) -> list[dict[str, Any]]:
    """Return where a container sees folders of the machine; `owner` is "" or a sidecar's name with a hyphen."""
    return [
        {"name": f"machine-{owner}{path.name}", "mountPath": path.mount_path, "readOnly": path.read_only}
        for path in paths
    ]
