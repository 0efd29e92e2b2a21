"""The configuration of an agent, and the names of files in a host's scratch folder.

`local.py` sends it as one line of JSON, `pod.py` makes it from the pod's variables and mounts. The scratch folder is on
the host's own disk, and goes away with the run.
"""

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from shardwise.launcher.ray.node import RayPlace
from shardwise.launcher.system.processes import own_module
from shardwise.protocol.contract import checkpoint_root, progress_name
from shardwise.protocol.message import Message
from shardwise.protocol.orders import LocalPlace, Orders

JOB_COPY = "job.yaml"
TRAINER = own_module("shardwise.train.child")
PROGRAM = own_module("shardwise.launcher.agent.program")
GANG_TOKEN = "gang-token"  # noqa: S105  the name of a file


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """`gang` authenticates the agents and Ray to each other; `status` those who read the status, or ask for a stop."""

    gang: str
    status: str


class AgentConfig(Message):
    """One host's part in a run.

    `run` names one life of the command, or one round of a job in a cluster: a successor of a lost host 0 goes on with
    what its predecessor used up of the budgets, a new command does not. `pod_attempt` counts the agents that the host
    had before, if that is known: of two that live, the later one is the host's. `url` is where the run directory lies
    if that is in a bucket; `directory` is then this host's own (`run_copy.py`). `local` is the folder of this host's
    local checkpoints, which goes away with the host. `listen` is "ip:port" of this host's
    own HTTP, `address` its ip. `started_at` is the command's start in seconds since the epoch. `fork` and `step` are
    what the command line asked. `one_machine` is true if all hosts are this one, so that no other can replace a host
    that is stuck; `started_monotonic` is the command's start by its monotonic clock.
    """

    run: str
    host: int
    num_hosts: int
    job_file: Path
    directory: Path
    url: str | None = None
    scratch: Path
    local: Path
    listen: str
    address: str
    gang_token_file: Path
    status_token_file: Path
    started_at: float
    fork: bool = False
    step: int | None = None
    pod_attempt: int = 0
    one_machine: bool = False
    started_monotonic: float = 0.0
    trainer_command: tuple[str, ...] = Field(default_factory=lambda: TRAINER)

    @property
    def tokens(self) -> Tokens:
        """Read the secrets that the run's HTTP asks for."""
        gang, status = (
            file.read_text(encoding="utf-8").strip() for file in (self.gang_token_file, self.status_token_file)
        )
        return Tokens(gang=gang, status=status)

    @property
    def place(self) -> RayPlace:
        """Return what this host's part of Ray needs to know."""
        return RayPlace(
            directory=self.directory,
            host=self.host,
            address=self.address,
            scratch=self.scratch,
            token_file=self.gang_token_file,
        )

    @property
    def socket(self) -> Path:
        """Return the unix socket at which this host's agent takes requests."""
        return socket_of(self.scratch, self.host)

    @property
    def progress(self) -> Path:
        """Return the file of its trainer's progress record."""
        return self.scratch / progress_name(self.host)

    def own(self, orders: Orders) -> Orders:
        """Return the orders with this host's own files: its folders may have other names than the leader's."""
        own = {
            "job_file": str(self.job_file),
            "directory": str(self.directory),
            "checkpoints": checkpoint_root(None, self.url) if self.url else None,
            "progress": str(self.progress),
            "stacks": str(stacks_of(self.scratch, self.host)),
            "local": LocalPlace(folder=str(self.local), address=self.address, token_file=str(self.gang_token_file)),
        }
        return orders.model_copy(update=own)


def socket_of(scratch: Path, host: int) -> Path:
    """Return the unix socket of a host's agent; the path is short, for the kernel takes 107 bytes."""
    return scratch / f"h{host}.sock"


def stacks_of(scratch: Path, host: int) -> Path:
    """Return the file that a host's trainer writes its stacks to."""
    return scratch / f"stacks-{host}.txt"
