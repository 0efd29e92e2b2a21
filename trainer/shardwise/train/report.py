"""Everything that a run says while it goes on: to metrics.jsonl, to the person who watches, to trackers.

One process of a run speaks; on the others nothing is written. Called by `shardwise.train.main` and the loop.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from rich.console import Console

from shardwise.job.spec import TrainingJob
from shardwise.train.checkpoint import SaveTicket
from shardwise.train.metrics import MetricsLog, Tracker
from shardwise.train.run_directory import RunDirectory
from shardwise.train.trackers import trackers
from shardwise.train.view import View

_SAID = {
    "saveFailed": "{reason}. Training goes on, and the next save is tried ({inARow} failed in a row)",
    "setAside": "going back to step {step}: the checkpoints of the steps {steps} are set aside",
    "skipped": "{reason}. Its update is held back, and training goes on",
    "retentionFailed": "old checkpoints stay until after the next save: {reason}",
}


class Report(Protocol):
    """What the loop tells."""

    def event(self, record: Mapping[str, Any]) -> None:
        """Something happened."""

    def step(self, number: int, record: Mapping[str, float]) -> None:
        """A step is complete."""

    def evaluated(self, number: int, values: Mapping[str, float]) -> None:
        """The held-out loss was measured."""

    def saved(self, ticket: SaveTicket) -> None:
        """A checkpoint is committed; told by the thread that wrote it."""


class Silence:
    """The report of every process but the one that speaks."""

    def event(self, record: Mapping[str, Any]) -> None:
        """Say nothing."""

    def step(self, number: int, record: Mapping[str, float]) -> None:
        """Say nothing."""

    def evaluated(self, number: int, values: Mapping[str, float]) -> None:
        """Say nothing."""

    def saved(self, ticket: SaveTicket) -> None:
        """Say nothing."""


class Speech:
    """The report of the process that speaks."""

    def __init__(self, log: MetricsLog, view: View, others: Sequence[Tracker]) -> None:
        self._log, self._view, self._others = log, view, others

    def event(self, record: Mapping[str, Any]) -> None:
        """Append it to metrics.jsonl; what does not happen in every run is said, too."""
        self._log.write(record)
        if record["event"] in _SAID:
            self._view.say(_SAID[record["event"]].format_map(record))

    def step(self, number: int, record: Mapping[str, float]) -> None:
        """Write a step's numbers everywhere."""
        self._log.write({"step": number, **record})
        self._view.step(number, record)
        for tracker in self._others:
            tracker.step(number, record)

    def evaluated(self, number: int, values: Mapping[str, float]) -> None:
        """Write an evaluation everywhere."""
        self._log.write({"event": "evaluated", "step": number, **values})
        self._view.evaluated(number, values["heldOutLoss"])
        for tracker in self._others:
            tracker.step(number, {name: values[name] for name in ("heldOutLoss", "heldOutAccuracy")})

    def saved(self, ticket: SaveTicket) -> None:
        """Write what the save took."""
        seconds = {"blockedSeconds": ticket.blocked_seconds, "durableSeconds": ticket.durable_seconds}
        saved_at = round(time.time(), 3)
        self.event({"event": "saved", "step": ticket.step, "savedAt": saved_at, **seconds, "digest": ticket.digest})
        self._view.saved(ticket.step)


@contextmanager
def speaking(job: TrainingJob, run: RunDirectory, console: Console, *, first_step: int) -> Iterator[Speech]:
    """A report that is open while the block runs."""
    log = MetricsLog(run.metrics)
    others: list[Tracker] = []
    try:
        say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
        others += trackers(job, run, say, after=first_step)
        with View(console, steps=job.spec.training.steps, first_step=first_step) as view:
            yield Speech(log, view, others)
    finally:
        for tracker in others:
            tracker.close()
        log.close()
