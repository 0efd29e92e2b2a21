"""The names of a job's objects, and the labels and the owner that each carries."""

from collections.abc import Mapping
from typing import Any

from shardwise.protocol.pods import HOST_LABEL, JOB_LABEL, PLAN, PLAN_LABEL, SLICE_LABEL
from shardwise_operator.runtime.kinds import TRAINING_JOBS

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "shardwise"
# What the operator lists and watches of the kinds that others use too.
OURS = f"{MANAGED_BY_LABEL}={MANAGER}"


def policy_name(job: str) -> str:
    """The NetworkPolicy."""
    return f"{job}-shardwise"


def config_map_name(job: str, round_: int) -> str:
    """What a round is made of."""
    return f"{job}-shardwise-{round_}"


def secret_name(job: str, uid: str) -> str:
    """The tokens; the UID in it tells them from those of an earlier job of the same name, which nobody can read."""
    return f"{job}-shardwise-{uid[:8]}"


def pod_name(job: str, host: str, attempt: int) -> str:
    """One pod of a host, "<slice>-<host>", or of the plan."""
    return f"{job}-{host}-{attempt}"


def host_name(job: str, host: str) -> str:
    """What every pod of a host calls itself."""
    return f"{job}-{host}"


def metadata(*, namespace: str, job: str, uid: str, name: str) -> dict[str, Any]:
    """The metadata of an object that belongs to a job and goes with it."""
    return {
        "name": name,
        "namespace": namespace,
        "labels": {
            MANAGED_BY_LABEL: MANAGER,
            "app.kubernetes.io/name": "shardwise-job",
            "app.kubernetes.io/instance": job,
            JOB_LABEL: job,
        },
        "ownerReferences": [owner(job, uid)],
    }


def owner(job: str, uid: str) -> dict[str, Any]:
    """The job as the one that its objects belong to."""
    return {
        "apiVersion": TRAINING_JOBS.api_version,
        "kind": TRAINING_JOBS.kind,
        "name": job,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def host_of(pod: Mapping[str, Any]) -> str:
    """The host of a pod of ours, "<slice>-<host>"; that of a plan's pod is "plan"."""
    labels = pod["metadata"]["labels"]
    return PLAN if PLAN_LABEL in labels else f"{labels[SLICE_LABEL]}-{labels[HOST_LABEL]}"
