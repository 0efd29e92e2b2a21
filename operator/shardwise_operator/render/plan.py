"""The pod that plans a job before its hosts have any: small, on any node, without accelerators, restricted.

It has the round's job and class where every pod of the job has them, the job's image, and `shardwise plan` as its
command. Its termination message is the verdict, or the end of its log.
"""

from typing import Any

from shardwise.job.accelerators import CLASS_VARIABLE
from shardwise.job.contract import CACHE_VARIABLE
from shardwise.job.load import as_data
from shardwise.job.pods import (
    ATTEMPT_LABEL,
    CLASS_KEY,
    JOB_KEY,
    JOB_MOUNT,
    PLAN,
    PLAN_LABEL,
    ROUND_LABEL,
    SCRATCH_MOUNT,
    TERMINATION_LOG,
)
from shardwise.job.presets import BYTE_TOKENIZER
from shardwise_operator.frozen import Frozen
from shardwise_operator.observed import Observed
from shardwise_operator.render.names import metadata, pod_name
from shardwise_operator.render.pods import LOST_NODES
from shardwise_operator.render.security import RESTRICTED, container_security, pod_security
from shardwise_operator.render.volumes import volume_mounts, volumes

_COMMAND = ["shardwise", "plan", f"{JOB_MOUNT}/{JOB_KEY}", "--summary", TERMINATION_LOG]
# To compile the step of a GPT-J of 6 billion parameters for 64 TPU chips took 1.6 GiB, and 80 s of a core.
_RESOURCES = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "8Gi"}}
# A search for a change that fits compiles the step up to seven times.
_MOST_SECONDS = 3600
_VOLUMES = ("shardwise-job", "shardwise-scratch", "shardwise-tmp")


def plan_manifest(seen: Observed) -> dict[str, Any]:
    """The next pod of the plan."""
    frozen = seen.made_of
    assert frozen is not None
    number = seen.state.attempts[PLAN]
    meta = metadata(namespace=seen.namespace, job=seen.name, uid=seen.uid, name=pod_name(seen.name, PLAN, number))
    own = {PLAN_LABEL: "true", ATTEMPT_LABEL: str(number), ROUND_LABEL: str(seen.state.round)}
    meta["labels"] = {**frozen.pod.labels, **meta["labels"], **own}
    meta["annotations"] = dict(frozen.pod.annotations)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": _spec(seen, frozen)}


def _spec(seen: Observed, frozen: Frozen) -> dict[str, Any]:
    names = {*_VOLUMES, *(volume.name for volume in frozen.pod.volumes if _reads_a_file(frozen))}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": _MOST_SECONDS,
        "terminationGracePeriodSeconds": 1,  # it has nothing to save
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": LOST_NODES,
        "securityContext": pod_security(frozen, RESTRICTED),
        "containers": [_container(frozen, names)],
        "volumes": [volume for volume in volumes(seen, frozen) if volume["name"] in names],
    }
    asked = as_data(frozen.pod)
    kept = ("serviceAccountName", "imagePullSecrets", "priorityClassName")
    return spec | {name: asked[name] for name in kept if name in asked}


def _container(frozen: Frozen, names: set[str]) -> dict[str, Any]:
    pod, reads = frozen.pod, _reads_a_file(frozen)
    variables = {variable.name: variable.value for variable in pod.env} if reads else {}
    variables |= {
        "HOME": SCRATCH_MOUNT,
        CACHE_VARIABLE: f"{SCRATCH_MOUNT}/cache",
        CLASS_VARIABLE: f"{JOB_MOUNT}/{CLASS_KEY}",
        "COLUMNS": "120",
    }
    asked = {mount.name for mount in pod.volume_mounts}
    mounts = [mount for mount in volume_mounts(frozen) if mount["name"] in names]
    made: dict[str, Any] = {
        "name": PLAN,
        "image": pod.image,
        "command": _COMMAND,
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": _RESOURCES,
        "securityContext": container_security(RESTRICTED),
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount | {"readOnly": True} if mount["name"] in asked else mount for mount in mounts],
    }
    if pod.image_pull_policy:
        made["imagePullPolicy"] = pod.image_pull_policy
    if pod.env_from and reads:
        made["envFrom"] = [as_data(source) for source in pod.env_from]
    return made


def _reads_a_file(frozen: Frozen) -> bool:
    """Whether the plan looks for a tokenizer's file, which says how large the vocabulary is; data it reads none."""
    return frozen.job.spec.training.data.tokenizer != BYTE_TOKENIZER
