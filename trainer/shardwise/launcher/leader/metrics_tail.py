"""What the leader learns from the trainers' metrics.jsonl: the last step, the newest checkpoint, steps that were lost.

Only lines that are appended while the command runs are read.
"""

import json
from collections import deque
from pathlib import Path
from typing import Any

from shardwise.launcher.system.lines import GrowingFile
from shardwise.protocol.contract import METRICS
from shardwise.protocol.eta import RECENT_STEPS
from shardwise.protocol.run_status import CheckpointStatus, FailedSaves


class MetricsTail:
    """What the lines since the start of the command add up to.

    `last` is the last step's record; `committed` the newest step saved by this command, -1 before. `checkpoint` is the
    newest known checkpoint with the time it was saved (seconds since the epoch) and, if this command saved it, the
    seconds that took; `failed_saves` is about the saves that failed since. `attempt` is the last one that began its
    steps, -1 before, and `stepped` whether it has completed one. `lost_seconds` is the time of steps that a later
    attempt repeated. `recent_seconds` are those of the last steps. `of` is how many steps a program says it has.
    """

    def __init__(self, directory: Path, offset: int) -> None:
        """Follow the file from `offset` on, the bytes it had when the command started."""
        self._file = GrowingFile(directory / METRICS, offset)
        self._seconds: dict[int, float] = {}
        self.last: dict[str, Any] = {}
        self.committed = -1
        self.checkpoint: CheckpointStatus | None = None
        self.failed_saves: FailedSaves | None = None
        self.recent_seconds = deque[float](maxlen=RECENT_STEPS)
        self.attempt = -1
        self.first_step = 0
        self.stepped = False
        self.lost_seconds = 0.0
        self.of: int | None = None

    def read(self) -> None:
        """Take in the lines that were appended since the last call."""
        for line in self._file.lines():
            self._take(json.loads(line))

    def _take(self, record: dict[str, Any]) -> None:
        event = record.get("event")
        if event is None:
            self.last = record
            self.stepped = True
            seconds = record.get("stepSeconds")
            self._seconds[record["step"]] = seconds or 0.0
            if seconds is not None:
                self.recent_seconds.append(seconds)
        elif event in ("started", "restored"):
            self.failed_saves = None
            if event == "restored" and self.checkpoint is None:
                self.checkpoint = CheckpointStatus(step=record["step"], saved_at=record.get("savedAt"))
            self.of = record.get("of")
            # Lines of an earlier release have no attempt; none of theirs is the one that runs.
            self._begun(record["step"], record.get("attempt", -1))
        elif event == "saved":
            self.committed = max(self.committed, record["step"])
            self.failed_saves = None
            self.checkpoint = CheckpointStatus(
                step=record["step"], saved_at=record.get("savedAt"), seconds=record["durableSeconds"]
            )
        elif event == "saveFailed":
            self.failed_saves = FailedSaves(in_a_row=record["inARow"], reason=record["reason"])

    def _begun(self, step: int, attempt: int) -> None:
        self.attempt, self.first_step, self.stepped = attempt, step, False
        # The attempt continues from `step`: what was trained beyond it is in no checkpoint, and will be done again.
        again = [done for done in self._seconds if done > step]
        self.lost_seconds += sum(self._seconds.pop(done) for done in again)
