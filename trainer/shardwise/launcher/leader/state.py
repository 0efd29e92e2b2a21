"""What the leader of a run knows and works with, in one place: `leader.py` makes it, and hands it to its parts.

It holds the leader's parts, the record for a successor, the account of wall time, and the run's phase. `leader.py`
changes the record's run and the phase, but for the change to running: `publisher.py` makes it at the first step.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.job.spec import TrainingJob
from shardwise.launcher.agent.config import AgentConfig
from shardwise.launcher.agent.host import Host
from shardwise.launcher.leader import goodput
from shardwise.launcher.leader.channel import Channel
from shardwise.launcher.leader.events import Events
from shardwise.launcher.leader.members import Members
from shardwise.launcher.leader.metrics_tail import MetricsTail
from shardwise.launcher.leader.stragglers import Stragglers
from shardwise.launcher.leader.watchdog import Baseline
from shardwise.launcher.system.lines import end_of_lines, size_of
from shardwise.protocol.contract import METRICS
from shardwise.protocol.leader_record import LeaderRecord
from shardwise.protocol.rising import Rising
from shardwise.protocol.run_status import RunPhase, StuckHost

if TYPE_CHECKING:  # an attempt works with this state; only pods with a bucket need a copy, and what it stands on
    from shardwise.launcher.agent.run_copy import RunCopy
    from shardwise.launcher.leader.attempt import Attempt


class LeaderState:
    """The leader's parts, its record, and what only this leader knows.

    `stop` is set once a stop of the run has been asked for. `running` is the attempt under way, `over` the newest one
    that has ended, None before the first; `ended_at` is when an attempt last ended badly, in seconds since the epoch.
    `code` is the run's exit code once it has ended.
    """

    def __init__(self, config: AgentConfig, job: TrainingJob, host: Host, copy: "RunCopy | None") -> None:
        """Take the run over from its last leader, if it had one; `copy` is that of a run directory in a bucket."""
        self.config, self.job, self.host, self.copy = config, job, host, copy
        self.directory = config.directory
        self.record = _taken_over(config)
        self.stop = asyncio.Event()
        if self.record.stop_asked:  # of the predecessor; whoever asked does not ask again
            self.stop.set()
        self.events = Events(self.directory)
        self.members = Members(config.num_hosts, host.agent_id)
        self.channel = Channel(config, self.members, self.events, host.answer, self.record.session)
        self.metrics = _metrics(self.record, self.directory)
        self.baseline, self.stragglers = Baseline(), Stragglers()
        self.predecessor_ran = self.record.running
        self._session = time.time() - time.monotonic()
        known = self.record.written_at or config.started_at
        self._ledger = goodput.Ledger(goodput.nothing() | dict(self.record.goodput), known)
        self._rising = Rising(self.record.counters)
        self.running: Attempt | None = None
        self._under_way_at: float | None = None
        self.over = self.record.attempt
        self.ended_at: float | None = known if self.predecessor_ran else None
        self.phase, self.reason = RunPhase.WAITING, ""
        self.code: int | None = None

    @property
    def since_end(self) -> float | None:
        """Return the seconds since the last bad end; None before the first."""
        return None if self.ended_at is None else round(self._now() - self.ended_at, 3)

    @property
    def goodput(self) -> dict[str, float]:
        """Return the wall time by category, to the millisecond."""
        split = goodput.with_lost(self._ledger.total(self._now(), self._seconds()), self.metrics.lost_seconds)
        return {name: round(seconds, 3) for name, seconds in split.items()}

    @property
    def leaving(self) -> list[int]:
        """The hosts that are about to go away; the run is saved before they do, and goes on with their successors."""
        own = [0] if self.host.leaving.is_set() else []
        return own + self.members.leaving()

    @property
    def stuck(self) -> list[StuckHost]:
        """The hosts that can start no trainer until another agent comes for them."""
        own = [StuckHost(host=0, address=self.config.address, message=self.host.stuck)] if self.host.stuck else []
        return own + self.members.stuck()

    @property
    def deadline_seconds(self) -> float | None:
        """Return what is left of the job's deadline; None without one.

        In a cluster, where hosts wait in queues, it counts from the first attempt of the run.
        """
        deadline, began_at = self.job.spec.deadline, self.record.began_at
        if deadline is None:
            return None
        if self.config.one_machine:
            return max(0.0, deadline.seconds - (time.monotonic() - self.config.started_monotonic))
        return deadline.seconds if began_at is None else max(0.0, deadline.seconds - (self._now() - began_at))

    def begin(self, attempt: "Attempt") -> None:
        """Note that an attempt is about to get its orders."""
        self.running, self._under_way_at = attempt, None
        self.phase = RunPhase.STARTING if self.ended_at is None else RunPhase.RECOVERING
        self.reason = ""
        self.note(attempt=attempt.number, running=True, began_at=self.record.began_at or self._now())
        self._ledger.began(self._now())

    def under_way(self) -> None:
        """Note that the attempt takes steps, or that it may be expected to."""
        self.phase, self._under_way_at = RunPhase.RUNNING, self._now()

    def end(self, *, well: bool) -> None:
        """Note that it has ended, well or badly."""
        assert self.running is not None
        self._ledger.ended(self._now(), self._seconds(), well=well)
        self.running, self.ended_at = None, self._now()
        self.note(running=False)

    def ask_stop(self) -> None:
        """Note that a stop of the run is asked for, for a successor too: it would go on with the run."""
        if not self.stop.is_set():
            self.stop.set()
            self.note(stop_asked=True)
            if self.copy:
                self.copy.soon()

    def say(self, reason: str) -> None:
        """Tell people what is waited for; from any thread."""
        self.reason = reason

    def recovers(self, why: str, left: str) -> None:
        """Tell people that the trainers start again, why, and what is left of the budget."""
        self.phase, self.reason = RunPhase.RECOVERING, f"{why}; {left}"

    def note(self, **changes: Any) -> None:
        """Change the record, and write it."""
        total = self._ledger.total(self._now(), self._seconds())
        counters = self._rising.after(self.goodput)
        known = {"goodput": total, "counters": counters, "metrics": self.metrics.known}
        self.record = self.record.model_copy(update={**known, **changes}).write(self.directory)

    def note_way_back(self) -> None:
        """Note where an attempt has passed over a damaged checkpoint: each one after that step fills the budgets."""
        if (step := self.metrics.take_way_back()) is not None:
            used = self.record.used
            self.note(used=used.model_copy(update={"committed": min(used.committed, step)}))

    async def keep(self, *, must: bool = False) -> None:
        """Have what is written where a successor finds it; on a volume it is there already.

        What a bucket does not take now follows later, unless it `must`: StorageError then.
        """
        if self.copy:
            await asyncio.to_thread(self.copy.keep, must=must)

    def _seconds(self) -> Mapping[str, float]:
        """Return rank 0's time by phase in the attempt that runs; of one that reports none, how long it takes steps."""
        if leading := self.running.progress.get(0) if self.running else None:
            return leading.seconds
        return {} if self._under_way_at is None else {goodput.UNDER_WAY: self._now() - self._under_way_at}

    def _now(self) -> float:
        """Return seconds since the epoch, by the wall clock of the start: setting the clock changes nothing."""
        return self._session + time.monotonic()


def _taken_over(config: AgentConfig) -> LeaderRecord:
    """Return the record of a lost predecessor under the same command, or a new one that keeps the run's restarts."""
    before = LeaderRecord.read(config.directory)
    port = int(config.listen.rsplit(":", 1)[1])
    if before and before.run == config.run:
        return before.model_copy(update={"leader_pid": os.getpid(), "port": port, "led": True})
    return LeaderRecord(
        run=config.run,
        scratch=str(config.scratch),
        leader_pid=os.getpid(),
        port=port,
        started_at=config.started_at,
        attempt=before.attempt if before else None,
        restarts=before.restarts if before else {},
        metrics_offset=end_of_lines(config.directory / METRICS),  # the trainers cut off what a kill has left of one
        phases={"spawn": time.time() - config.started_at},
    )


def _metrics(record: LeaderRecord, directory: Path) -> MetricsTail:
    """Follow the metrics from where the record knows them; from the command's first if they are shorter than that."""
    known = record.metrics
    # The copies of both files in a bucket need not be of one moment.
    whole = known is not None and size_of(directory / METRICS) >= known.offset
    return MetricsTail(directory, record.metrics_offset, known if whole else None)
