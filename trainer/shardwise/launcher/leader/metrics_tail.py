"""What the leader learns from the trainers' metrics.jsonl: the last step, the newest checkpoint, steps that were lost.

Only lines that are appended while the command runs are read. What they add up to at a checkpoint is for the next
leader, which need not read them again.
"""

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

from shardwise.launcher.leader.metrics_record import record_of
from shardwise.launcher.leader.step_times import StepTimes
from shardwise.launcher.system.lines import GrowingFile
from shardwise.protocol.contract import METRICS
from shardwise.protocol.eta import RECENT_STEPS
from shardwise.protocol.leader_record import MetricsRead
from shardwise.protocol.run_status import CheckpointStatus, FailedSaves
from shardwise.protocol.storage import passing_over

_PIECE_BYTES = 1 << 18
"""What is read at once, in some milliseconds: the leader's loop has followers to answer meanwhile."""


class MetricsTail:
    """What the lines since the start of the command add up to.

    `last` is the last step's record; `committed` the newest step saved by this command, -1 before, less once an attempt
    has passed over a damaged checkpoint, and goes on from an earlier one. `checkpoint` is the
    newest known checkpoint with the time it was saved (seconds since the epoch) and, if this command saved it, the
    seconds that took; `failed_saves` is about the saves that failed since. `local_step` is that of the newest local
    checkpoint, None if this attempt has made none. `attempt` is the last one that began its
    steps, -1 before, and `stepped` whether it has completed one. `lost_seconds` is the time of steps that a later
    attempt repeated. `recent_seconds` are what the last steps took. `of` is how many steps a program says it has.
    `held_out_loss` is that of the last evaluation, None before one and if it is not a number.
    `known` is what all lines up to the last one that told of a checkpoint have said; None before the first.
    """

    def __init__(self, directory: Path, offset: int, known: MetricsRead | None = None) -> None:
        """Follow the file from `offset` on, the bytes it had when the command started, or from where `known` ends."""
        self._file = GrowingFile(directory / METRICS, known.offset if known else offset, most_bytes=_PIECE_BYTES)
        self._times = StepTimes(known.steps_time if known else ())
        self.known = known
        self.last: dict[str, Any] = known.last if known else {}
        self.committed = known.committed if known else -1
        self.checkpoint = known.checkpoint if known else None
        self.failed_saves: FailedSaves | None = None
        self.local_step: int | None = None
        self.recent_seconds = deque[float](maxlen=RECENT_STEPS)
        self.attempt = -1
        self.first_step = 0
        self.stepped = False
        self.lost_seconds = known.lost_seconds if known else 0.0
        self.of = known.of if known else None
        self.held_out_loss = known.held_out_loss if known else None
        self._evaluated_at = -1
        self._way_back: int | None = None
        self._lowest = -1
        self._at: int | None = self.last.get("step")

    def read(self) -> bool:
        """Take in lines that were appended since the last call; return whether more of them are to be read.

        An error that may pass counts as if there were none: they are there the next time.
        """
        with passing_over():
            return self._read_piece()
        return False

    async def read_all(self) -> None:
        """Take in all lines that were appended, however many: they may be those of weeks; OSError if it cannot."""
        while self._read_piece():  # noqa: ASYNC110  nothing is waited for: the loop has its turn between two pieces
            await asyncio.sleep(0)

    def take_way_back(self) -> int | None:
        """Return to which step an attempt had to go back behind what was committed; None if none has since."""
        step, self._way_back = self._way_back, None
        return step

    def _read_piece(self) -> bool:
        """Take in some of the lines, and return as `read`; OSError if that fails."""
        before = self.checkpoint
        for line in self._file.lines():
            if record := record_of(line):
                self._take(record)
        if self.checkpoint != before and self.committed >= 0:
            self.known = self._sum()
        return self._file.behind

    def _take(self, record: dict[str, Any]) -> None:
        event = record.get("event")
        if event is None:
            self._stepped(record["step"], record.get("stepSeconds"))
            self.last = record
        elif event in ("started", "restored"):
            self.failed_saves = self.local_step = None
            if event == "restored" and not record.get("local"):
                self._restored(record["step"], record.get("savedAt"))
            self.of = record.get("of")
            # Lines of an earlier release have no attempt; none of theirs is the one that runs.
            self._begun(record["step"], record.get("attempt", -1))
        elif event == "saved":
            self.committed = max(self.committed, record["step"])
            self._times.saved(record["step"])
            self.failed_saves = None
            self.checkpoint = CheckpointStatus(
                step=record["step"], saved_at=record.get("savedAt"), seconds=record.get("durableSeconds")
            )
        elif event == "evaluated":
            self.held_out_loss, self._evaluated_at = record.get("heldOutLoss"), record["step"]
        elif event == "savedLocally":
            self.local_step = record["step"]
        elif event == "saveFailed":
            self.failed_saves = FailedSaves(in_a_row=record.get("inARow", 1), reason=record.get("reason", ""))

    def _stepped(self, step: int, seconds: float | None) -> None:
        self.stepped = True
        self._times.took(step, seconds or 0.0)
        # A program may report only each hundredth step, with the seconds of all of them.
        count = 1 if self._at is None else max(1, step - self._at)
        self._at = step
        if count > 1 and len(self.recent_seconds) == 1:
            self.recent_seconds.clear()  # the first report begins the run with its own step, and may be of any number
        if seconds is not None:
            self.recent_seconds.append(seconds / count)

    def _restored(self, step: int, saved_at: float | None) -> None:
        if self.checkpoint is None or step < self.checkpoint.step:
            self.checkpoint = CheckpointStatus(step=step, saved_at=saved_at)
        # A program that goes back to the same step each time makes no progress, whatever it saves after that.
        if self._lowest < step < self.committed:
            self.committed = self._way_back = self._lowest = step

    def _begun(self, step: int, attempt: int) -> None:
        self.attempt, self.first_step, self.stepped, self._at = attempt, step, False, step
        if self.last and self.last["step"] > step:
            self.last = {**self.last, "step": step}
        if self._evaluated_at > step:
            self.held_out_loss = None
        # The attempt continues from `step`: what was trained beyond it is in no checkpoint, and will be done again.
        self.lost_seconds += self._times.lost_after(step)

    def _sum(self) -> MetricsRead:
        return MetricsRead(
            offset=self._file.offset,
            committed=self.committed,
            checkpoint=self.checkpoint,
            last=self.last,
            lost_seconds=self.lost_seconds,
            steps_time=self._times.in_short,
            of=self.of,
            held_out_loss=self.held_out_loss,
        )
