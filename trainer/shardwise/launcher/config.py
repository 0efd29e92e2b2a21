"""What an agent is told when it starts: by the command as one line of JSON, in a pod by its variables and mounts.

Made by `local.py` and `pod.py`, read by `agent.py`. Also the names of the files in a host's scratch folder, which is on
the host's own disk and goes away with the run.
"""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shardwise.launcher.ray_node import RayPlace

JOB_COPY = "job.yaml"
TRAINER: tuple[str, ...] = (sys.executable, "-m", "shardwise.train.child")
GANG_TOKEN, STATUS_TOKEN = "gang-token", "status-token"  # names of files


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """`gang` is what the agents and Ray know each other by; `status` is what a reader shows, or who asks for a stop."""

    gang: str
    status: str


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """One host's part in a run.

    `run` names one life of the command, or one round of a job in a cluster: a successor of a lost host 0 goes on with
    what its predecessor used up of the budgets, a new command does not. `attempt` counts the agents that the host had
    before, where it is known: of two that live the later one is the host's. `listen` is
    "ip:port" of this host's own HTTP, `address` its ip. `started_at` is the command's start in seconds
    since the epoch. `fork` and `step` are what the command line asked. `one_machine` says that all hosts are this
    one, so that nobody can take the place of a host that is stuck; `started_monotonic` is the command's start by its
    monotonic clock.
    """

    run: str
    host: int
    num_hosts: int
    job_file: str
    directory: str
    scratch: str
    listen: str
    address: str
    gang_token_file: str
    status_token_file: str
    started_at: float
    fork: bool
    step: int | None
    attempt: int = 0
    one_machine: bool = False
    started_monotonic: float = 0.0
    trainer_command: list[str] = field(default_factory=lambda: list(TRAINER))

    def dumps(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, line: str) -> "AgentConfig":
        """The inverse of `dumps`."""
        return cls(**json.loads(line))

    @property
    def tokens(self) -> Tokens:
        """The secrets that the run's HTTP asks for."""
        return Tokens(gang=_read(self.gang_token_file), status=_read(self.status_token_file))

    @property
    def place(self) -> RayPlace:
        """What this host's part of Ray needs to know."""
        return RayPlace(
            directory=Path(self.directory),
            host=self.host,
            address=self.address,
            scratch=Path(self.scratch),
            token_file=Path(self.gang_token_file),
        )

    @property
    def socket(self) -> Path:
        """The unix socket at which this host's agent takes requests."""
        return socket_of(Path(self.scratch), self.host)


def socket_of(scratch: Path, host: int) -> Path:
    """The unix socket of a host's agent; short, for the kernel takes 107 bytes."""
    return scratch / f"h{host}.sock"


def stacks_of(scratch: Path, host: int) -> Path:
    """The file that a host's trainer writes its stacks to."""
    return scratch / f"stacks-{host}.txt"


def _read(file: str) -> str:
    return Path(file).read_text(encoding="utf-8").strip()
