"""What a program's run leaves for people and tools: metrics.jsonl and summary.json, as a trainer writes them.

Only the process that writes does so; of the others it takes everything, and keeps nothing.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import jax
from pydantic.alias_generators import to_camel

from shardwise.protocol.errors import UsageError
from shardwise.train.checkpoint import SaveTicket
from shardwise.train.metrics import MetricsLog
from shardwise.train.run_directory import RunDirectory

_TAKEN = ("step", "event", "stepSeconds")


class Record:
    """The record of one start of a run."""

    def __init__(self, files: RunDirectory, name: str, *, of: int | None, writes: bool) -> None:
        """Open the metrics; `of` is how many steps the run has, if that is known."""
        self._files, self._name, self._of = files, name, of
        self._log = MetricsLog(files.metrics) if writes else None
        self._step = 0
        self._digest: str | None = None

    def restored(self, step: int, digest: str) -> None:
        """Note what this start goes on from, with its digest: it may find nothing left to do. The first one counts."""
        if self._step == 0:
            self._step, self._digest = step, digest

    def started(self, after: int, saved_at: float | None) -> None:
        """Note that the steps after `after` begin; `saved_at` is when it was saved, in seconds since the epoch."""
        begun: dict[str, Any] = {"event": "restored" if after else "started", "step": after}
        if saved_at is not None:
            begun["savedAt"] = saved_at
        self._step = after
        facts = {"attempt": self._files.attempt, "of": self._of, "devices": jax.device_count(), "program": True}
        self.event(begun | facts)
        self._summarise("running")

    def step(self, number: int, values: Mapping[str, float]) -> None:
        """Note the numbers of a complete step."""
        self._step = number
        if self._log:
            self._log.write({"step": number, **values})

    def event(self, record: Mapping[str, Any]) -> None:
        """Note an event."""
        if self._log:
            self._log.write(record)

    def saved(self, ticket: SaveTicket) -> None:
        """Note a committed checkpoint, from the thread that wrote it."""
        seconds = {"blockedSeconds": ticket.blocked_seconds, "durableSeconds": ticket.durable_seconds}
        now = round(time.time(), 3)
        self.event({"event": "saved", "step": ticket.step, "savedAt": now, **seconds, "digest": ticket.digest})

    def ended(self, status: str, digest: str | None) -> None:
        """Note the end; `digest` is that of the last checkpoint that this start has saved, None if it saved none."""
        self._summarise(status, digest=digest or self._digest)

    def failed(self, error: BaseException) -> None:
        """Note the error that ends this start."""
        self._summarise("failed", error=f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Close the metrics."""
        if self._log:
            self._log.close()

    def _summarise(self, status: str, **more: object) -> None:
        if self._log:
            summary = {
                "name": self._name,
                "status": status,
                "steps": self._step,
                "of": self._of,
                "jax": jax.__version__,
            }
            self._files.write_summary({**summary, **more})


def check_names(names: Iterable[str]) -> None:
    """Raise UsageError if not each of the metrics has a name of its own in metrics.jsonl."""
    given: dict[str, str] = {}
    for name in names:
        if (written := to_camel(name)) in _TAKEN:
            raise UsageError(f"report({name}=...): expected another name for this metric")
        if (other := given.setdefault(written, name)) != name:
            raise UsageError(
                f"report({other}=..., {name}=...): expected one of them, since both are {written} in metrics.jsonl"
            )
