"""What a run reports while it trains: to metrics.jsonl, to the terminal or log, to trackers. Only rank 0 reports."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.console import Console

from shardwise.job.spec import TrainingJob
from shardwise.protocol.evaluated import by_name
from shardwise.train.checkpoint import SaveTicket
from shardwise.train.metrics import MetricsLog, Tracker
from shardwise.train.run_directory import RunDirectory
from shardwise.train.trackers import trackers
from shardwise.train.view import View

_MESSAGES = {
    "saveFailed": "{reason}. Training goes on, and the next save is tried ({inARow} failed in a row)",
    "localSaveFailed": "local checkpoint of step {step} not saved: {reason}. Training goes on, with fewer of them",
    "setAside": "going back to step {step}: the checkpoints of the steps {steps} are set aside",
    "skipped": "{reason}. Its update is held back, and training goes on",
    "retentionFailed": "old checkpoints stay until after the next save: {reason}",
}


class Report:
    """Takes what happens in a run, as it happens; this one, of every rank but 0, does nothing with it."""

    def event(self, record: Mapping[str, Any]) -> None:
        """Take an event."""

    def step(self, number: int, record: Mapping[str, float]) -> None:
        """Take the numbers of a complete step."""

    def evaluated(self, number: int, record: Mapping[str, Any], seconds: float) -> None:
        """Take the results of an evaluation (`shardwise.protocol.evaluated`) that took so long and is over."""

    def saved(self, ticket: SaveTicket) -> None:
        """Take a committed checkpoint, from the thread that wrote it."""


class RunReport(Report):
    """The report of rank 0.

    Attributes:
        complete: whether the run has taken its last step.

    """

    complete = False

    def __init__(self, log: MetricsLog, view: View, others: Sequence[Tracker]) -> None:
        self._log, self._view, self._others = log, view, others

    def event(self, record: Mapping[str, Any]) -> None:
        """Append it to metrics.jsonl; show it as well if not every run has such an event."""
        self._log.write(record)
        self.complete |= record["event"] == "complete"
        if record["event"] in _MESSAGES:
            self._view.show(_MESSAGES[record["event"]].format_map(record))

    def step(self, number: int, record: Mapping[str, float]) -> None:
        """Write a step's numbers everywhere."""
        self._log.write({"step": number, **record})
        self._view.step(number, record)
        for tracker in self._others:
            tracker.step(number, record)

    def evaluated(self, number: int, record: Mapping[str, Any], seconds: float) -> None:
        """Write an evaluation everywhere."""
        when = {"evaluatedAt": round(time.time(), 3), "evaluationSeconds": round(seconds, 3)}
        self._log.write({"event": "evaluated", "step": number, **when, **record})
        self._view.evaluated(record)
        for tracker in self._others:
            tracker.step(number, {name: value for name, value in by_name(record).items() if value is not None})

    def saved(self, ticket: SaveTicket) -> None:
        """Write how long the save took."""
        seconds = {"blockedSeconds": ticket.blocked_seconds, "durableSeconds": ticket.durable_seconds}
        saved_at = round(time.time(), 3)
        self.event({"event": "saved", "step": ticket.step, "savedAt": saved_at, **seconds, "digest": ticket.digest})
        self._view.saved(ticket.step)


def step_record(
    values: Mapping[str, float], rate: float, seconds: float, mfu_of_one_token_a_second: float, *, z_loss: bool
) -> dict[str, float]:
    """Return the numbers of a step as metrics.jsonl has them, for a rate in tokens a second."""
    record = {
        "loss": values["loss"],
        "accuracy": values["accuracy"],
        "learningRate": values["learning_rate"],
        "gradNorm": values["grad_norm"],
        "tokensPerSecond": rate,
        "stepSeconds": seconds,
        "mfu": rate * mfu_of_one_token_a_second,
    }
    if "busiest_expert" in values:
        record |= {"busiestExpert": values["busiest_expert"], "idleExperts": values["idle_experts"]}
    return record | ({"zLoss": values["z_loss"]} if z_loss else {})


@contextmanager
def open_report(job: TrainingJob, run: RunDirectory, console: Console, *, first_step: int) -> Iterator[RunReport]:
    """Open the report of rank 0; close its files and trackers when the block ends."""
    log = MetricsLog(run.metrics)
    others: list[Tracker] = []
    report = None
    with log.closing():
        try:
            show = partial(console.print, highlight=False, markup=False, soft_wrap=True)
            others += trackers(job, run, show, after=first_step)
            with View(console, job.spec.training, first_step=first_step) as view:
                report = RunReport(log, view, others)
                yield report
        finally:
            for tracker in others:
                tracker.close(complete=report is not None and report.complete)
