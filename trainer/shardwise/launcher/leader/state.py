"""The state of a run: the leader's record, the ledger of its time, and its phase.

Only `leader.py` changes it; `publisher.py` reads it.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.launcher.agent.config import AgentConfig
from shardwise.launcher.leader import goodput
from shardwise.launcher.leader.attempt import Attempt
from shardwise.launcher.system.lines import size_of
from shardwise.protocol.contract import METRICS
from shardwise.protocol.leader_record import LeaderRecord
from shardwise.protocol.run_status import RunPhase


class LeaderState:
    """The leader's record, and what only this leader knows.

    `running` is the attempt under way, `over` the newest one that has ended, None before the first; `ended_at` is when
    an attempt last ended badly, in seconds since the epoch. `code` is the run's exit code once it has ended.
    """

    def __init__(self, config: AgentConfig) -> None:
        """Take the run over from its last leader, if it had one."""
        self._directory = Path(config.directory)
        self.record = _taken_over(config)
        self.predecessor_ran = self.record.running
        self._session = time.time() - time.monotonic()
        known = self.record.written_at or config.started_at
        self._ledger = goodput.Ledger(goodput.nothing() | dict(self.record.goodput), known)
        self.running: Attempt | None = None
        self.over = self.record.attempt
        self.ended_at: float | None = known if self.predecessor_ran else None
        self.phase, self.reason = RunPhase.WAITING, ""
        self.code: int | None = None

    @property
    def since_end(self) -> float | None:
        """Return the seconds since the last bad end; None before the first."""
        return None if self.ended_at is None else round(self._now() - self.ended_at, 3)

    def begin(self, attempt: Attempt) -> None:
        """Note that an attempt is about to get its orders."""
        self.running = attempt
        self.phase = RunPhase.STARTING if self.ended_at is None else RunPhase.RECOVERING
        self.reason = ""
        self.note(attempt=attempt.number, running=True, began_at=self.record.began_at or self._now())
        self._ledger.began(self._now())

    def end(self, *, well: bool) -> None:
        """Note that it has ended, well or badly."""
        assert self.running is not None
        self._ledger.ended(self._now(), self.running.seconds, well=well)
        self.running, self.ended_at = None, self._now()
        self.note(running=False)

    def note(self, **changes: Any) -> None:
        """Change the record, and write it."""
        total = self._ledger.total(self._now(), self._seconds())
        self.record = self.record.model_copy(update={"goodput": total, **changes}).write(self._directory)

    def goodput(self, lost_seconds: float) -> dict[str, float]:
        """Return the wall time by category, to the millisecond."""
        split = goodput.with_lost(self._ledger.total(self._now(), self._seconds()), lost_seconds)
        return {name: round(seconds, 3) for name, seconds in split.items()}

    def _seconds(self) -> Mapping[str, float]:
        return self.running.seconds if self.running else {}

    def _now(self) -> float:
        """Return seconds since the epoch, by the wall clock of the start: setting the clock changes nothing."""
        return self._session + time.monotonic()


def _taken_over(config: AgentConfig) -> LeaderRecord:
    """Return the record of a lost predecessor under the same command, or a new one that keeps the run's restarts."""
    directory = Path(config.directory)
    before = LeaderRecord.read(directory)
    port = int(config.listen.rsplit(":", 1)[1])
    if before and before.run == config.run:
        return before.model_copy(update={"leader_pid": os.getpid(), "port": port, "led": True})
    return LeaderRecord(
        run=config.run,
        scratch=config.scratch,
        leader_pid=os.getpid(),
        port=port,
        started_at=config.started_at,
        attempt=before.attempt if before else None,
        restarts=before.restarts if before else {},
        metrics_offset=size_of(directory / METRICS),
        phases={"spawn": time.time() - config.started_at},
    )
