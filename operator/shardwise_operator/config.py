"""What the operator is told when it starts, and every pass goes by.

Made by `main.py` from the command line.
"""

from dataclasses import dataclass
from pathlib import Path

from shardwise_operator.render.secret import Tokens

_MIN_KEY_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The operator's settings.

    Attributes:
        trainer_image: of jobs whose class and pod section name none.
        operator_namespace: from where the pods of a job let the operator in.
        managed_by: the jobs it looks after: those whose `spec.managedBy` is this; "" for those without one.
        poll_seconds: how often host 0 of a job is asked how it stands, at best.
        tokens: of every job.
        job_network_policies: whether each job gets a NetworkPolicy of its own; else its namespace has one for all.

    """

    trainer_image: str
    operator_namespace: str
    managed_by: str
    poll_seconds: float
    tokens: Tokens
    job_network_policies: bool = True


def read_key(path: Path) -> Tokens:
    """The operator's key; ValueError where the file holds no key."""
    key = path.read_bytes().strip()
    if len(key) < _MIN_KEY_BYTES:
        raise ValueError(f"{path}: given {len(key)} bytes, expected a key of at least {_MIN_KEY_BYTES} random bytes")
    return Tokens(key)
