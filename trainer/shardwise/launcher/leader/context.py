"""What the leader works with, in one place: `leader.py` makes it, and hands it to its parts."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from shardwise.job.spec import TrainingJob
from shardwise.launcher.agent.config import AgentConfig
from shardwise.launcher.agent.host import Host
from shardwise.launcher.leader.channel import Channel
from shardwise.launcher.leader.events import Events
from shardwise.launcher.leader.members import Members
from shardwise.launcher.leader.metrics_tail import MetricsTail
from shardwise.launcher.leader.stragglers import Stragglers
from shardwise.launcher.leader.watchdog import Baseline
from shardwise.protocol.run_status import StuckHost


@dataclass(frozen=True, kw_only=True)
class Context:
    """One of each. `stop` is set once a stop of the run has been asked for."""

    config: AgentConfig
    job: TrainingJob
    host: Host
    members: Members
    channel: Channel
    metrics: MetricsTail
    baseline: Baseline
    stragglers: Stragglers
    events: Events
    stop: asyncio.Event

    @property
    def directory(self) -> Path:
        """The run directory."""
        return Path(self.config.directory)

    @property
    def leaving(self) -> list[int]:
        """The hosts that are about to go away; the run is saved before they do, and goes on with their successors."""
        own = [0] if self.host.leaving.is_set() else []
        return own + self.members.leaving()

    @property
    def stuck(self) -> list[StuckHost]:
        """The hosts that can start no trainer until another agent comes for them."""
        own = [StuckHost(host=0, address=self.config.address, message=self.host.stuck)] if self.host.stuck else []
        others = self.members.stuck().items()
        return own + [StuckHost(host=host, address=member.address, message=member.stuck) for host, member in others]

    def deadline_seconds(self, began_at: float | None) -> float | None:
        """Return what is left of the job's deadline; None without one.

        In a cluster, where hosts wait in queues, it counts from `began_at`, the first attempt of the run.
        """
        deadline = self.job.spec.deadline
        if deadline is None:
            return None
        if self.config.one_machine:
            return max(0.0, deadline.seconds - (time.monotonic() - self.config.started_monotonic))
        return deadline.seconds if began_at is None else max(0.0, deadline.seconds - (time.time() - began_at))
