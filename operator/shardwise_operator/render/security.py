"""What a pod may do to its node, by the PodSecurity level of its class.

`restricted` is the strictest that Kubernetes has. At `baseline` the container is root inside of itself; at `privileged`
it may use the node's devices and folders, which TPUs and the libraries of some GPUs ask for. The root file system is
read-only at each.
"""

from collections.abc import Iterable
from typing import Any

from shardwise_operator.observe.snapshot import Snapshot

# The user and the group of the trainer's image.
USER = 10001
RESTRICTED = "restricted"


def pod_security(snapshot: Snapshot, level: str) -> dict[str, Any]:
    """Return the security context of a pod of the job that keeps to this level."""
    of_namespace = level == RESTRICTED and snapshot.user_of_namespace
    context: dict[str, Any] = {
        **({} if of_namespace else {"fsGroup": USER}),
        "fsGroupChangePolicy": "OnRootMismatch",
        **snapshot.pod.spec.get("securityContext", {}),
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if of_namespace:
        return {**context, "runAsNonRoot": True}
    if level != RESTRICTED:
        return {**context, "runAsUser": 0, "runAsGroup": 0}
    return {**context, "runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER}


def sidecar_security(capabilities: Iterable[str]) -> dict[str, Any]:
    """Return the security context of a container of the class, in a privileged pod.

    Without a seccomp profile, as the machine's vendor runs it: the pod's keeps system calls of device memory from it.
    The trainer, a privileged container, has none either.
    """
    return {"capabilities": {"add": [*capabilities]}, "seccompProfile": {"type": "Unconfined"}}


def container_security(level: str) -> dict[str, Any]:
    """Return the security context of the container."""
    if level == "privileged":
        return {"privileged": True, "readOnlyRootFilesystem": True}
    if level == "baseline":
        return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
