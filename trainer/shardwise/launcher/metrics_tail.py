"""What the trainers' metrics.jsonl says to the leader: the last step, the newest checkpoint, steps that were lost.

Called by the leader. It reads only what is added while the command lives, and never writes.
"""

import json
from pathlib import Path
from typing import Any

from shardwise.job.contract import METRICS
from shardwise.launcher.lines import GrowingFile


class MetricsTail:
    """The end of the metrics, followed.

    `last` is the last step's record; `committed` the newest step that was saved meanwhile, -1 before; `checkpoint` the
    newest checkpoint that is known, when it was saved (seconds since the epoch), and the seconds it took where that was
    meanwhile; `failed_saves` those since; `incarnation` the last one that began its steps, and `stepped` whether it has
    completed one; `lost_seconds` the steps' time that a later incarnation did again.
    """

    def __init__(self, directory: Path, offset: int) -> None:
        """Follow what comes after `offset` bytes, which is where the file ended when the command started."""
        self._file = GrowingFile(directory / METRICS, offset)
        self._seconds: dict[int, float] = {}
        self.last: dict[str, Any] = {}
        self.committed = -1
        self.checkpoint: dict[str, Any] | None = None
        self.failed_saves: dict[str, Any] | None = None
        self.incarnation = -1
        self.first_step = 0
        self.stepped = False
        self.lost_seconds = 0.0

    def read(self) -> None:
        """Take in what has been added."""
        for line in self._file.lines():
            self._take(json.loads(line))

    def _take(self, record: dict[str, Any]) -> None:
        event = record.get("event")
        if event is None:
            self.last = record
            self.stepped = True
            self._seconds[record["step"]] = record.get("stepSeconds") or 0.0
        elif event in ("started", "restored"):
            self.failed_saves = None
            if event == "restored" and self.checkpoint is None:
                self.checkpoint = {"step": record["step"], "savedAt": record.get("savedAt")}
            self._begun(record["step"], record["incarnation"])
        elif event == "saved":
            self.committed = max(self.committed, record["step"])
            self.failed_saves = None
            when = {"savedAt": record.get("savedAt"), "seconds": record["durableSeconds"]}
            self.checkpoint = {"step": record["step"], **when}
        elif event == "saveFailed":
            self.failed_saves = {"inARow": record["inARow"], "reason": record["reason"]}

    def _begun(self, step: int, incarnation: int) -> None:
        self.incarnation, self.first_step, self.stepped = incarnation, step, False
        again = [done for done in self._seconds if done > step]
        self.lost_seconds += sum(self._seconds.pop(done) for done in again)
