"""The one container of a pod: the agent, as `job/pods.py` says."""

from typing import Any

from shardwise.job.contract import CACHE_VARIABLE
from shardwise.job.load import as_data
from shardwise.job.pods import (
    ADDRESS_VARIABLE,
    AGENT_PORT,
    ATTEMPT_VARIABLE,
    CONTRACT,
    CONTRACT_VARIABLE,
    DIRECTORY_VARIABLE,
    RANK_VARIABLE,
    RUN_VARIABLE,
    SCRATCH_MOUNT,
    STARTED_VARIABLE,
    TERMINATION_LOG,
)
from shardwise.job.topology import host_resources
from shardwise_operator.frozen import Frozen
from shardwise_operator.observed import Observed
from shardwise_operator.render.names import AGENT
from shardwise_operator.render.security import container_security
from shardwise_operator.render.volumes import volume_mounts

_COMMAND = ["python", "-m", "shardwise.launcher.pod"]
_READY_PERIOD_SECONDS = 5


def container(seen: Observed, frozen: Frozen, host: str) -> dict[str, Any]:
    """The agent of a host, "<slice>-<host>"."""
    pod = frozen.pod
    made: dict[str, Any] = {
        "name": AGENT,
        "image": seen.state.image or pod.image,
        "command": _COMMAND,
        "env": _env(seen, frozen, host),
        "resources": _resources(frozen),
        "ports": [{"name": "agent", "containerPort": AGENT_PORT, "protocol": "TCP"}],
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": "agent"},
            "periodSeconds": _READY_PERIOD_SECONDS,
            "timeoutSeconds": 3,
            "failureThreshold": 2,
        },
        "securityContext": container_security(frozen.machine.spec.pod_security),
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        "volumeMounts": volume_mounts(frozen),
    }
    if pod.image_pull_policy:
        made["imagePullPolicy"] = pod.image_pull_policy
    if pod.env_from:
        made["envFrom"] = [as_data(source) for source in pod.env_from]
    return made


def _env(seen: Observed, frozen: Frozen, host: str) -> list[dict[str, Any]]:
    """The class's variables, the job's over them, and the contract's, which neither may have."""
    started_at = seen.state.started_at
    assert started_at is not None
    ours = {
        CONTRACT_VARIABLE: CONTRACT,
        RANK_VARIABLE: str(frozen.rank(host)),
        ATTEMPT_VARIABLE: str(seen.state.attempts[host]),
        RUN_VARIABLE: f"{seen.uid}-{seen.state.round}",
        STARTED_VARIABLE: f"{started_at:.0f}",
        DIRECTORY_VARIABLE: frozen.pod.directory,
        "HOME": f"{SCRATCH_MOUNT}/home",
        CACHE_VARIABLE: f"{SCRATCH_MOUNT}/cache",
    }
    asked = {variable.name: variable.value for variable in (*frozen.machine.spec.env, *frozen.pod.env)}
    address = {"name": ADDRESS_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return [address, *({"name": name, "value": value} for name, value in {**asked, **ours}.items())]


def _resources(frozen: Frozen) -> dict[str, dict[str, str]]:
    """What the job asks for, and the class's devices, of which a pod gets what it asks for and no more.

    Devices do not count for a pod's quality of service: one that asks for neither cpu nor memory is the first that a
    kubelet evicts and that the kernel kills, so the class asks for some where the job does not.
    """
    asked = frozen.pod.resources
    machine = host_resources(frozen.machine, frozen.topology)
    least = {name: amount for name, amount in frozen.machine.spec.requests.items() if name not in asked.limits}
    parts = {
        "requests": {**{name: str(amount) for name, amount in {**least, **asked.requests}.items()}, **machine},
        "limits": {**{name: str(amount) for name, amount in asked.limits.items()}, **machine},
    }
    return {name: amounts for name, amounts in parts.items() if amounts}
