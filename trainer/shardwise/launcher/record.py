"""DIR/logs/gang.json: what a run's leader must know after it, its host or the whole command was killed.

Written by the leader by rename; read by the leader that follows it, and by the command (what to tidy up, and whether
the leader had said its last word). DIR/logs/launcher.jsonl: what happened, one JSON object a line.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any, Self

from shardwise.job.contract import GANG, LOGS, Cause
from shardwise.job.files import replace_file
from shardwise.job.storage import passing_over
from shardwise.launcher.budgets import Used
from shardwise.launcher.goodput import nothing
from shardwise.launcher.wire import camel, snake

EVENTS = "launcher.jsonl"


@dataclass(frozen=True, kw_only=True)
class GangRecord:
    """The state of a run's leader.

    `run` is the command's life that it belongs to; `restarts` count over the life of the run directory, `used` over
    that of the command. `fresh` says that no checkpoint was committed under this command yet, so what its command line
    asked of the start still holds. `began_at` is when its first incarnation did, in seconds since the epoch. `led` is
    False where the leader has gone away in good order. `goodput` is the wall time up to `written_at` (seconds since the
    epoch), lost steps not yet told apart; `metrics_offset` is where the metrics of this command begin. `code` is the
    last word, None before it, and `word` all of it.
    """

    run: str
    scratch: str
    leader_pid: int
    port: int
    started_at: float
    written_at: float = 0.0
    began_at: float | None = None
    incarnation: int | None = None
    epoch: int = 0
    running: bool = False
    fresh: bool = True
    restarts: Mapping[str, int] = field(default_factory=dict)
    used: Used = field(default_factory=Used)
    goodput: Mapping[str, float] = field(default_factory=nothing)
    metrics_offset: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)
    led: bool = True
    code: int | None = None
    word: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """The record of a run directory; None before the first leader, and where a loss of power has emptied it.

        The pods of the round before may have had the image of a newer release: what that has added is left out.
        """
        try:
            fields = snake(json.loads((directory / LOGS / GANG).read_text(encoding="utf-8")))
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        used = snake(fields["used"])
        counts = {Cause(cause): count for cause, count in used["counts"].items() if cause in list(Cause)}
        return cls(**_known(cls, {**fields, "used": Used(**_known(Used, {**used, "counts": counts}))}))

    def write(self, directory: Path) -> Self:
        """Replace the record by rename; the record as written.

        Where the storage does not take it now, the one before stays: it is written anew every two seconds, and a leader
        that ended for it would have to be followed by one that cannot write it either.
        """
        written = replace(self, written_at=time.time())
        with passing_over():
            replace_file(directory / LOGS / GANG, json.dumps(camel(written), indent=2) + "\n", durable=False)
        return written


def _known(of: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a class has a field for."""
    return {field.name: given[field.name] for field in fields_of(of) if field.name in given}


class Events:
    """launcher.jsonl, for appending. Each event is one write, so that a kill can cut short only the last line.

    One that the storage does not take is lost: nothing is decided by it.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOGS / EVENTS

    def write(self, event: str, **more: Any) -> None:
        """Append an event."""
        line = json.dumps({"time": round(time.time(), 3), "event": event, **more}) + "\n"
        with passing_over():
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)
