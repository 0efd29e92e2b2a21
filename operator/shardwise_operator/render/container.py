"""The containers of a pod: the agent, as `protocol/pods.py` says, and those that a job's template has beside it."""

from collections.abc import Iterable, Mapping
from typing import Any

from shardwise.job.load import as_data
from shardwise.job.spec.accelerator import Sidecar
from shardwise.job.topology import host_resources
from shardwise.protocol import pods
from shardwise.protocol.contract import CACHE_VARIABLE
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.snapshot import Snapshot
from shardwise_operator.render.security import container_security, sidecar_security
from shardwise_operator.render.volumes import host_mounts, volume_mounts

_COMMAND = ["python", "-P", "-m", "shardwise.launcher.pod"]
# Of a sidecar: GKE's take half a minute. One that does not start is started again until the job's startWithin is over.
_STARTS_WITHIN = {"periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 60}


def container(seen: Observed, snapshot: Snapshot, host: str) -> dict[str, Any]:
    """Return the container of the agent of a host, "<slice>-<host>".

    It has no probe: host 0 tells how many trainers have joined, and a probe that waited for that would make the kubelet
    warn of every start.
    """
    return {
        "name": pods.AGENT,
        "image": seen.state.image or snapshot.pod.image,
        "command": _COMMAND,
        "env": _env(seen, snapshot, host),
        "resources": _resources(snapshot),
        "ports": [{"name": "agent", "containerPort": pods.AGENT_PORT, "protocol": "TCP"}],
        "securityContext": container_security(snapshot.machine.spec.pod_security),
        "terminationMessagePath": pods.TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        "volumeMounts": volume_mounts(snapshot),
        **asked_of_agent(snapshot, "imagePullPolicy", "envFrom"),
    }


def asked_of_agent(snapshot: Snapshot, *fields: str) -> dict[str, Any]:
    """Return those of the fields that the job's template has for the agent."""
    return {name: snapshot.pod.agent[name] for name in fields if name in snapshot.pod.agent}


def env(asked: Iterable[Mapping[str, Any]], ours: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Return the variables asked for, the last of each name, and ours in place of those of the same name."""
    made = [*asked, *({"name": name, "value": value} for name, value in ours.items())]
    return [*{each["name"]: each for each in made}.values()]


def side_container(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return a container of the template beside the agent, kept to PodSecurity's restricted level in any class."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {**asked, "securityContext": asked.get("securityContext", {}) | security}


def sidecar(given: Sidecar) -> dict[str, Any]:
    """Return a container of the class: the kubelet starts it before the trainer, and ends it after the trainer."""
    made: dict[str, Any] = {
        "name": given.name,
        "image": given.image,
        "restartPolicy": "Always",
        "command": [*given.command],
        "env": [as_data(variable) for variable in given.env],
        "securityContext": sidecar_security(given.capabilities),
        "volumeMounts": host_mounts(f"{given.name}-", given.host_paths),
    }
    if given.started:
        made["startupProbe"] = {"exec": {"command": [*given.started]}, **_STARTS_WITHIN}
    return {name: value for name, value in made.items() if value}


def _env(seen: Observed, snapshot: Snapshot, host: str) -> list[Mapping[str, Any]]:
    """Return the class's variables, the job's over them, and the contract's, which neither may have."""
    started_at = seen.state.started_at
    assert started_at is not None
    ours = {
        pods.CONTRACT_VARIABLE: pods.CONTRACT,
        pods.RANK_VARIABLE: str(snapshot.rank(host)),
        pods.POD_ATTEMPT_VARIABLE: str(seen.state.attempts[host]),
        pods.RUN_VARIABLE: f"{seen.uid}-{seen.state.round}",
        pods.STARTED_VARIABLE: f"{started_at:.0f}",
        pods.DIRECTORY_VARIABLE: snapshot.pod.directory,
        "HOME": f"{pods.SCRATCH_MOUNT}/home",
        CACHE_VARIABLE: f"{pods.SCRATCH_MOUNT}/cache",
    }
    address = {"name": pods.ADDRESS_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    asked = [*(as_data(variable) for variable in snapshot.machine.spec.env), *snapshot.pod.agent.get("env", [])]
    return [address, *env(asked, ours)]


def _resources(snapshot: Snapshot) -> dict[str, Any]:
    """Return what the job asks for, and the class's devices, of which a pod gets what it asks for and no more.

    Devices do not count for a pod's quality of service: one that asks for neither cpu nor memory is the first that a
    kubelet evicts and that the kernel kills, so the class asks for some where the job does not.
    """
    asked = snapshot.pod.agent.get("resources", {})
    requests, limits = (asked.get(name, {}) for name in ("requests", "limits"))
    machine = host_resources(snapshot.machine, snapshot.topology)
    least = {name: amount for name, amount in snapshot.machine.spec.requests.items() if name not in limits}
    parts = {
        "requests": {**{name: str(amount) for name, amount in {**least, **requests}.items()}, **machine},
        "limits": {**{name: str(amount) for name, amount in limits.items()}, **machine},
    }
    return {name: amounts for name, amounts in {**asked, **parts}.items() if amounts}
