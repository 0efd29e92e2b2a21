"""The settings that the operator is started with."""

from dataclasses import dataclass
from pathlib import Path

from shardwise_operator.observe.pod_defaults import NO_DEFAULTS, PodDefaults
from shardwise_operator.render.secret import Tokens

PREVIOUS_KEY = "previous"
"""The entry of the key's Secret that holds the key before it, while the key is rotated."""
_MIN_KEY_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The operator's settings.

    Attributes:
        trainer_image: the image of jobs if neither their class nor their pod section names one.
        operator_namespace: the namespace from which the pods of a job let the operator in.
        managed_by: the `spec.managedBy` of the jobs to look after; "" for jobs without one.
        poll_seconds: the shortest time between two polls of a job's host 0.
        tokens: makes the tokens of every job.
        pod_defaults: what the pods of every job have, unless its template says otherwise.
        ttl_after_finished: how long a finished job is kept that does not say so itself; None, for good.
        job_network_policies: whether each job gets a NetworkPolicy of its own; if not, its namespace has one for all.
        kueue: whether jobs may wait in the queues of Kueue, which must be there.
        kueue_priority_boost: whether a job's priority there rises with the age of its newest checkpoint.
        gang_scheduling: whether the scheduler is to place a job's pods all at once or not at all.

    """

    trainer_image: str
    operator_namespace: str
    managed_by: str
    poll_seconds: float
    tokens: Tokens
    pod_defaults: PodDefaults = NO_DEFAULTS
    ttl_after_finished: str | None = None
    job_network_policies: bool = True
    kueue: bool = False
    kueue_priority_boost: bool = False
    gang_scheduling: bool = False


def read_key(path: Path) -> Tokens:
    """Return what makes the tokens from the operator's key, and from the one before it if a file beside it has one.

    Raises:
        ValueError: a file holds no key.

    """
    before = path.with_name(PREVIOUS_KEY)
    return Tokens(_key(path), _key(before) if before.exists() else None)


def _key(path: Path) -> bytes:
    key = path.read_bytes().strip()
    if len(key) < _MIN_KEY_BYTES:
        raise ValueError(f"{path}: given {len(key)} bytes, expected a key of at least {_MIN_KEY_BYTES} random bytes")
    return key
