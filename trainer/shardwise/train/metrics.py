"""metrics.jsonl: one JSON object per step, and other events with a key "event".

A run that resumes writes the steps that it repeats again: `steps` keeps the last record of each.
"""

import json
import math
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import SEEK_END
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from shardwise.protocol.shared_files import line_of_run
from shardwise.protocol.storage import may_pass

Record = Mapping[str, Any]

_MAX_WAITING_BYTES = 16 << 20
_MOST_NAMED = 5
_END_BYTES = 1 << 20  # far more than a line has


class Tracker(Protocol):
    """Takes metrics beside the file."""

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Take one step's numbers."""

    def close(self, *, complete: bool) -> None:
        """Send what is buffered; `complete` says whether the run took its last step."""


class MetricsLog:
    """The open file, for any thread. Each record is written at once, so that a kill can cut off only the last line.

    If the storage refuses for a while, such as a full disk, records wait in memory and are written with the next one: a
    run that survives a failed save also survives a missing line.
    """

    def __init__(self, path: Path) -> None:
        """Open for appending, and remove a line that a killed run left unfinished."""
        self._file = path.open("ab", buffering=0)
        _drop_partial_line(path)
        self._lock, self._waiting = threading.Lock(), b""

    def write(self, record: Record) -> None:
        """Append one record, with null for numbers that JSON cannot hold."""
        finite = _finite(record)
        with self._lock:
            self._waiting += json.dumps(finite, allow_nan=False).encode() + b"\n"
            try:
                self._flush()
            except OSError as error:
                if not may_pass(error) or len(self._waiting) > _MAX_WAITING_BYTES:
                    raise

    def close(self) -> None:
        """Write what waits in memory, and close the file."""
        try:
            self._flush()
        finally:
            self._file.close()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Close it as the block ends; an error by which it ends stays the error if storage refuses the last lines."""
        try:
            yield
        except BaseException:
            try:
                self.close()
            except OSError as refusal:
                why, count = refusal.strerror or refusal, self._waiting.count(b"\n")
                with suppress(OSError):  # the log may be on the same disk
                    sys.stderr.write(f"metrics.jsonl: the last {count} lines are lost ({why})\n")
            raise
        self.close()

    def _flush(self) -> None:
        while self._waiting:
            self._waiting = self._waiting[self._file.write(self._waiting) :]


def records(path: Path, damaged: list[int] | None = None, *, last: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield every whole record of the file, oldest first; the numbers of lines that are none are put into `damaged`.

    With `last`, of steps that follow each other only so many of the last are read, and the others passed over.

    A kill can cut off only the last line, which has no end then. Any other damage is of the storage or by a hand: the
    rest of the file is good all the same.
    """
    with suppress(FileNotFoundError), path.open("rb") as file:
        lines = ((number, line) for number, line in enumerate(file, 1) if line.endswith(b"\n"))
        for number, line in lines if last is None else _last_of_each_row(lines, last):
            if (record := _record(line)) is not None:
                yield record
            elif damaged is not None:
                damaged.append(number)


def _last_of_each_row(lines: Iterable[tuple[int, bytes]], last: int) -> Iterator[tuple[int, bytes]]:
    """Yield all lines but those of steps with `last` more steps behind them before the next event.

    A run goes back to a step that an event told of, so that what it goes on from is there.
    """
    row = deque[tuple[int, bytes]](maxlen=last)
    for numbered in lines:
        line = numbered[1]
        if line.startswith(b"{") and line.endswith(b"}\n") and b'"event"' not in line:
            row.append(numbered)
            continue
        yield from row
        row.clear()
        yield numbered
    yield from row


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


class Recorded(NamedTuple):
    """What the file has of a run."""

    steps: list[dict[str, Any]]
    """One record per step, in order; for a step that was repeated after a restart, the last one."""
    events: list[dict[str, Any]]
    """All events, oldest first."""
    damaged: list[int]
    """The numbers of the lines that are no JSON object, and were passed over."""

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The events of all evaluations that count, by step: none of a branch that the run has gone back from."""
        found: list[dict[str, Any]] = []
        for record in self.events:
            event = record["event"]
            if event in ("started", "restored", "evaluated"):
                # Their steps ascend, so what counts no more is at the end. A run of weeks may have a hundred thousand.
                counts_below = record["step"] + (event != "evaluated")
                while found and found[-1]["step"] >= counts_below:
                    found.pop()
            if event == "evaluated":
                found.append(record)
        return found

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """The step and the results of the last evaluation that counts (`shardwise.protocol.evaluated`)."""
        last = self.evaluations[-1:]
        return {key: value for key, value in last[0].items() if key != "event"} if last else None

    @property
    def damage(self) -> str:
        """What a person is told of damaged lines; nothing if there are none."""
        if not self.damaged:
            return ""
        named, rest = self.damaged[:_MOST_NAMED], len(self.damaged) - _MOST_NAMED
        more = f" and {rest:,} more" if rest > 0 else ""
        lines = "line" if len(self.damaged) == 1 else "lines"
        return f"metrics.jsonl: {lines} {', '.join(map(str, named))}{more} cannot be read as JSON; passed over"


def recorded(path: Path, *, last: int | None = None) -> Recorded:
    """Return what the file has; it may be of weeks, and is read once. `last` is as in `records`."""
    newest: dict[int, dict[str, Any]] = {}
    events: list[dict[str, Any]] = []
    damaged: list[int] = []
    for line in records(path, damaged, last=last):
        record = line_of_run(line)
        if record is None:
            continue
        if "event" not in record:
            newest[record["step"]] = record
            continue
        events.append(record)
        if record["event"] in ("started", "restored"):
            while newest and next(reversed(newest)) > record["step"]:  # steps ascend up to here
                newest.popitem()
    return Recorded([newest[step] for step in sorted(newest)], events, damaged)


def steps(path: Path) -> list[dict[str, Any]]:
    """Return the records of the steps alone."""
    return recorded(path).steps


def last_step(path: Path) -> int:
    """Return the last step that the run has ever taken, also if it has gone back since; 0 before the first."""
    taken = (line_of_run(record) for record in records(path) if "event" not in record)
    return max((record["step"] for record in taken if record), default=0)


def _drop_partial_line(path: Path) -> None:
    """Cut off what follows the last whole line; of the file, which may be of weeks, only its end is read."""
    with path.open("r+b") as file:
        size, length = file.seek(0, SEEK_END), _END_BYTES
        while True:
            start = file.seek(max(0, size - length))
            found = file.read().rfind(b"\n")
            if found >= 0 or start == 0:
                break
            length *= 2
        file.truncate(start + found + 1)


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
