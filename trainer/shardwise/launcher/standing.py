"""How a run stands, as its leader knows it: the record that is kept, the ledger of its time, and the phase it is in.

Changed by `gang.py` alone, read by `board.py`.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.job.contract import METRICS
from shardwise.launcher import goodput
from shardwise.launcher.config import AgentConfig
from shardwise.launcher.incarnation import Incarnation
from shardwise.launcher.lines import size_of
from shardwise.launcher.record import GangRecord
from shardwise.launcher.status import RunPhase


class Standing:
    """What the leader has come to.

    `running` is the incarnation under way, `over` the newest one that is not; `ended_at` is when the last one ended
    badly, in seconds since the epoch. `code` is the last word.
    """

    def __init__(self, config: AgentConfig) -> None:
        """Take the run over from whoever led it."""
        self._directory = Path(config.directory)
        self.record = _taken_over(config)
        self.predecessor_ran = self.record.running
        self._epoch = time.time() - time.monotonic()
        known = self.record.written_at or config.started_at
        self._ledger = goodput.Ledger(self.record.goodput, known)
        self.running: Incarnation | None = None
        self.over = -1 if self.record.incarnation is None else self.record.incarnation
        self.ended_at: float | None = known if self.predecessor_ran else None
        self.phase, self.reason = RunPhase.WAITING, ""
        self.code: int | None = None

    @property
    def since_end(self) -> float | None:
        """Seconds since the last bad end; None before the first."""
        return None if self.ended_at is None else round(self._now() - self.ended_at, 3)

    def begin(self, incarnation: Incarnation) -> None:
        """An incarnation is about to get its orders."""
        self.running = incarnation
        self.phase = RunPhase.STARTING if self.ended_at is None else RunPhase.RECOVERING
        self.reason = ""
        self.note(incarnation=incarnation.number, running=True, began_at=self.record.began_at or self._now())
        self._ledger.began(self._now())

    def end(self, *, well: bool) -> None:
        """It is over, well or badly."""
        assert self.running is not None
        self._ledger.ended(self._now(), self.running.seconds, well=well)
        self.running, self.ended_at = None, self._now()
        self.note(running=False)

    def note(self, **changes: Any) -> None:
        """Change the record, and keep it."""
        total = self._ledger.total(self._now(), self._seconds())
        self.record = replace(self.record, goodput=total, **changes).write(self._directory)

    def goodput(self, lost_seconds: float) -> dict[str, float]:
        """The wall time by category, to the millisecond."""
        split = goodput.with_lost(self._ledger.total(self._now(), self._seconds()), lost_seconds)
        return {name: round(seconds, 3) for name, seconds in split.items()}

    def _seconds(self) -> Mapping[str, float]:
        return self.running.seconds if self.running else {}

    def _now(self) -> float:
        """Seconds since the epoch, as the wall clock said at first: one that is set meanwhile is no time."""
        return self._epoch + time.monotonic()


def _taken_over(config: AgentConfig) -> GangRecord:
    """The record of a lost predecessor under the same command, or a new one that keeps the run's restarts."""
    directory = Path(config.directory)
    before = GangRecord.read(directory)
    port = int(config.listen.rsplit(":", 1)[1])
    if before and before.run == config.run:
        return replace(before, leader_pid=os.getpid(), port=port, led=True)
    return GangRecord(
        run=config.run,
        scratch=config.scratch,
        leader_pid=os.getpid(),
        port=port,
        started_at=config.started_at,
        incarnation=before.incarnation if before else None,
        restarts=before.restarts if before else {},
        metrics_offset=size_of(directory / METRICS),
        phases={"spawn": time.time() - config.started_at},
    )
