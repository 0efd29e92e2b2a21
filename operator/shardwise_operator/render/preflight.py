"""The pod that plans a job before its hosts have any: small, on any node, without accelerators, restricted.

It has the round's job and class where every pod of the job has them, the job's image, and `shardwise plan` as its
command. Its termination message is the verdict, or the end of its log.

Where it may run, the platform team says for all pods of jobs; the job and its class speak of nodes with accelerators.
"""

from typing import Any

from shardwise.job.accelerators import CLASS_VARIABLE
from shardwise.job.load import as_data
from shardwise.job.presets import BYTE_TOKENIZER
from shardwise.protocol import pods
from shardwise.protocol.contract import CACHE_VARIABLE
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod_defaults import PodDefaults
from shardwise_operator.observe.snapshot import Snapshot
from shardwise_operator.render.container import asked_of_agent, env
from shardwise_operator.render.names import metadata, pod_name
from shardwise_operator.render.pods import LOST_NODES
from shardwise_operator.render.security import RESTRICTED, container_security, pod_security
from shardwise_operator.render.volumes import volume_mounts, volumes
from shardwise_operator.runtime.kinds import PODS

_COMMAND = ["shardwise", "plan", f"{pods.JOB_MOUNT}/{pods.JOB_KEY}", "--summary", pods.TERMINATION_LOG]
# To compile the step of a GPT-J of 6 billion parameters for 64 TPU chips took 1.6 GiB, and 80 s of a core.
_RESOURCES = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "8Gi"}}
# A search for a change that fits compiles the step up to seven times.
_MOST_SECONDS = 3600
_VOLUMES = ("shardwise-job", "shardwise-scratch", "shardwise-tmp")


def plan_manifest(seen: Observed, defaults: PodDefaults) -> dict[str, Any]:
    """Return the next pod of the plan, with the nodes, tolerations and variables that all pods of jobs have."""
    snapshot = seen.round_snapshot
    number = seen.state.attempts[pods.PLAN]
    meta = metadata(seen, pod_name(seen.name, pods.PLAN, number))
    own = {pods.PLAN_LABEL: "true", pods.POD_ATTEMPT_LABEL: str(number), pods.ROUND_LABEL: str(seen.state.round)}
    meta["labels"] = {**snapshot.pod.metadata.get("labels", {}), **meta["labels"], **own}
    meta["annotations"] = dict(snapshot.pod.metadata.get("annotations", {}))
    return PODS.manifest(meta, spec=_spec(seen, snapshot, defaults))


def _spec(seen: Observed, snapshot: Snapshot, defaults: PodDefaults) -> dict[str, Any]:
    asked = snapshot.pod.agent.get("volumeMounts", []) if _reads_a_file(snapshot) else []
    names = {*_VOLUMES, *(mount["name"] for mount in asked)}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": _MOST_SECONDS,
        "terminationGracePeriodSeconds": 1,  # it has nothing to save
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [*LOST_NODES, *map(as_data, defaults.tolerations)],
        "securityContext": pod_security(snapshot, RESTRICTED),
        "containers": [_container(snapshot, names, defaults)],
        "volumes": [volume for volume in volumes(seen, snapshot) if volume["name"] in names],
    }
    if defaults.node_selector:
        spec["nodeSelector"] = defaults.node_selector
    kept = ("serviceAccountName", "imagePullSecrets", "priorityClassName")
    return spec | {name: snapshot.pod.spec[name] for name in kept if name in snapshot.pod.spec}


def _container(snapshot: Snapshot, names: set[str], defaults: PodDefaults) -> dict[str, Any]:
    agent, reads = snapshot.pod.agent, _reads_a_file(snapshot)
    ours = {
        "HOME": pods.SCRATCH_MOUNT,
        CACHE_VARIABLE: f"{pods.SCRATCH_MOUNT}/cache",
        CLASS_VARIABLE: f"{pods.JOB_MOUNT}/{pods.CLASS_KEY}",
        "COLUMNS": "120",
    }
    given = [{"name": name, "value": value} for name, value in defaults.env.items()]
    asked = {mount["name"] for mount in agent.get("volumeMounts", [])}
    mounts = [mount for mount in volume_mounts(snapshot) if mount["name"] in names]
    return {
        "name": pods.PLAN,
        "image": snapshot.pod.image,
        "command": _COMMAND,
        "env": env([*given, *(agent.get("env", []) if reads else [])], ours),
        "resources": _RESOURCES,
        "securityContext": container_security(RESTRICTED),
        "terminationMessagePath": pods.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount | {"readOnly": True} if mount["name"] in asked else mount for mount in mounts],
        **asked_of_agent(snapshot, "imagePullPolicy", *(("envFrom",) if reads else ())),
    }


def _reads_a_file(snapshot: Snapshot) -> bool:
    """Return whether the plan needs a tokenizer's file, for the size of the vocabulary; data it reads none."""
    return snapshot.job.spec.training.data.tokenizer != BYTE_TOKENIZER
