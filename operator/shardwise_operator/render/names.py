"""The names of a job's objects, and the labels and the owner that each carries."""

from typing import Any

from shardwise.protocol.pods import JOB_LABEL
from shardwise_operator.observe.observed import Observed
from shardwise_operator.runtime.kinds import TRAINING_JOBS

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "shardwise"
SEAL_ANNOTATION = "shardwise.dev/seal"
# What the operator lists and watches of the kinds that others use too.
OURS = f"{MANAGED_BY_LABEL}={MANAGER}"


def policy_name(job: str) -> str:
    """Return the name of the job's NetworkPolicy."""
    return f"{job}-shardwise"


def config_map_name(job: str, round_: int) -> str:
    """Return the name of the ConfigMap that a round is made of."""
    return f"{job}-shardwise-{round_}"


def round_of(job: str, name: str) -> int | None:
    """Return the round of a ConfigMap or a gang of a job; None of another name."""
    number = name.removeprefix(f"{job}-shardwise-")
    return int(number) if number.isdecimal() else None


def secret_name(job: str, uid: str) -> str:
    """Return the Secret's name; the UID in it keeps it apart from a deleted job's."""
    return f"{job}-shardwise-{uid[:8]}"


def workload_name(job: str, uid: str) -> str:
    """Return the Workload's name; the UID in it keeps it apart from an earlier job's, which may still be there."""
    return f"{job}-shardwise-{uid[:8]}"


def gang_name(job: str, round_: int) -> str:
    """Return the name of the pods of a round that the scheduler places together."""
    return f"{job}-shardwise-{round_}"


def pod_name(job: str, host: str, attempt: int) -> str:
    """Return the name of one pod of a host, "<slice>-<host>", or of the plan."""
    return f"{job}-{host}-{attempt}"


def metadata(seen: Observed, name: str) -> dict[str, Any]:
    """Return the metadata of an object that belongs to a job and goes with it."""
    return {
        "name": name,
        "namespace": seen.namespace,
        "labels": {
            MANAGED_BY_LABEL: MANAGER,
            "app.kubernetes.io/name": "shardwise-job",
            "app.kubernetes.io/instance": seen.name,
            JOB_LABEL: seen.name,
        },
        "ownerReferences": [owner(seen)],
    }


def owner(seen: Observed) -> dict[str, Any]:
    """Return the owner reference to the job."""
    return TRAINING_JOBS.reference(seen.name, seen.uid) | {"controller": True, "blockOwnerDeletion": True}
