"""What the leader works with, in one place: made by `gang.py`, handed to its parts."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from shardwise.job.spec import TrainingJob
from shardwise.launcher.config import AgentConfig
from shardwise.launcher.host import Host
from shardwise.launcher.members import Members
from shardwise.launcher.metrics_tail import MetricsTail
from shardwise.launcher.reach import Reach
from shardwise.launcher.record import Events
from shardwise.launcher.stragglers import Stragglers
from shardwise.launcher.watchdog import Usual


@dataclass(frozen=True, kw_only=True)
class Stuck:
    """A host that SIGKILL does not free of its last trainer: `words` say of which process, `address` is its ip."""

    host: int
    address: str
    words: str


@dataclass(frozen=True, kw_only=True)
class Means:
    """One of each. `stop` is set when somebody has asked for a stop of the run."""

    config: AgentConfig
    job: TrainingJob
    host: Host
    members: Members
    reach: Reach
    metrics: MetricsTail
    usual: Usual
    stragglers: Stragglers
    events: Events
    stop: asyncio.Event

    @property
    def directory(self) -> Path:
        """The run directory."""
        return Path(self.config.directory)

    @property
    def leaving(self) -> list[int]:
        """The hosts that are about to go away: what runs is saved before they do, and goes on with their successors."""
        return [0] * self.host.leaving.is_set() + self.members.leaving()

    @property
    def stuck(self) -> list[Stuck]:
        """The hosts that can start no trainer until another agent comes for them."""
        own = [Stuck(host=0, address=self.config.address, words=self.host.stuck)] if self.host.stuck else []
        others = self.members.stuck().items()
        return own + [Stuck(host=host, address=member.address, words=member.stuck) for host, member in others]

    def deadline_seconds(self, began_at: float | None) -> float | None:
        """What is left of the job's deadline; None without one.

        In a cluster, where hosts wait in queues, it counts from `began_at`, the first incarnation of the run.
        """
        deadline = self.job.spec.deadline
        if deadline is None:
            return None
        if self.config.one_machine:
            return max(0.0, deadline.seconds - (time.monotonic() - self.config.started_monotonic))
        return deadline.seconds if began_at is None else max(0.0, deadline.seconds - (time.time() - began_at))
