"""A run of trackio, which restarts continue. The package trackio is an extra.

trackio's own `init` asks Hugging Face for the user's name wherever a token is set, and makes a Space where a variable
names one; it samples the machine, prints, and opens a dashboard in a notebook. Its database is SQLite, which goes well
neither with a shared volume nor with a copy in a bucket. It has another way in: an inbox of JSON lines, which its
dashboard takes into the database. So that is what is written here, one file for each start, and nothing listens or
connects. Each record has an identifier made of its step, and of two with the same one trackio keeps the first: a step
that is repeated after a restart is in the run once.
"""

import os
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from shardwise.protocol.errors import UsageError
from shardwise.train.background import Point

FOLDER = "trackio"
"""Of the run's logs; TRACKIO_DIR for the dashboard."""
_MOST_REMEMBERED = 1000  # appends


class Trackio:
    """Scalars in one run of a trackio project."""

    def __init__(self, project: str, name: str, run_id: str, logs: Path, attempt: int) -> None:
        """Choose the file of this start in the run's logs; nothing is written yet.

        Raises:
            UsageError: trackio does not take the project's name.

        """
        from trackio.fragments import INBOX_DIR_NAME  # noqa: PLC0415  an extra, and it takes seconds
        from trackio.sqlite_storage import SQLiteStorage  # noqa: PLC0415

        try:
            SQLiteStorage.validate_project_name(project)
        except ValueError as error:
            raise UsageError(f"tracking.trackioProject: {error}") from error
        self._project, self._name, self._run_id = project, name, run_id
        # The dashboard takes files by name, so that the first start's numbers come first.
        self._file = logs / FOLDER / INBOX_DIR_NAME / f"attempt-{attempt:06d}.jsonl"
        self._remembered: deque[bytes] = deque(maxlen=_MOST_REMEMBERED)

    def send(self, points: Sequence[Point]) -> None:
        """Append the numbers of some steps."""
        from trackio.fragments import FragmentWriter  # noqa: PLC0415  an extra

        lines = FragmentWriter.serialize_records([self._record(point) for point in points])
        self._append(lines)
        self._remembered.append(lines)

    def close(self, *, complete: bool) -> None:  # noqa: ARG002  a run of trackio has no state
        """Write once more what a dashboard may have missed."""
        if self._remembered:
            self._append(b"")

    def _append(self, lines: bytes) -> None:
        """Append whole lines, and before them what a dashboard may have missed.

        A dashboard reads a file, and removes it a moment later: lines that came between are gone with it. If they were
        read all the same, their identifiers are known.
        """
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("ab+") as file:
            if not file.tell():
                file.write(b"".join(self._remembered))
            else:
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":  # a full disk has cut a line off
                    file.write(b"\n")
            file.write(lines)

    def _record(self, point: Point) -> dict[str, object]:
        from trackio.fragments import metric_record  # noqa: PLC0415  an extra

        first = next(iter(point.values), "")  # a step's numbers and its evaluation are two records
        entry = {
            "project": self._project,
            "run": self._name,
            "run_id": self._run_id,
            "step": point.step,
            "metrics": dict(point.values),
            "timestamp": datetime.fromtimestamp(point.at, UTC).isoformat(),
            "log_id": f"{self._run_id}-{point.step}-{first}",
        }
        return dict(metric_record(entry))
