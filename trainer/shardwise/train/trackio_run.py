"""A run of trackio, which restarts continue. The package trackio is an extra.

trackio's own `init` asks Hugging Face for the user's name wherever a token is set, samples the machine, prints, opens
a dashboard in a notebook, and swallows failures. Its database is SQLite, which goes well neither with a shared volume
nor with a copy in a bucket. There are two other ways in, and these are taken:

    an inbox of JSON lines in the run's logs, which a dashboard takes into its database: nothing listens or connects
    the request of trackio's own clients, to a server or a Space, if the environment names one

Each record has an identifier made of its step, and of two with the same one trackio keeps the first: a step that is
repeated after a restart, or whose answer was lost, is in the run once.
"""

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from shardwise.protocol.errors import UsageError
from shardwise.protocol.storage import first_line
from shardwise.train.background import ANSWER_SECONDS, Point, Service
from shardwise.train.run_directory import RunDirectory

FOLDER = "trackio"
"""Of the run's logs; TRACKIO_DIR for the dashboard."""
SPACE, SERVER, WRITE_TOKEN = "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_WRITE_TOKEN"
_MOST_REMEMBERED = 1000  # appends
_PASSING_REPLIES = (408, 425, 429)


@dataclass(frozen=True)
class Records:
    """Points as trackio's records, of one run of a project."""

    project: str
    name: str
    run_id: str

    def of(self, points: Sequence[Point]) -> list[dict[str, object]]:
        """Return a record of each point."""
        from trackio.fragments import metric_record  # noqa: PLC0415  an extra

        return [dict(metric_record(self._entry(point))) for point in points]

    def _entry(self, point: Point) -> dict[str, object]:
        first = next(iter(point.values), "")  # a step's numbers and its evaluation are two records
        return {
            "project": self.project,
            "run": self.name,
            "run_id": self.run_id,
            "step": point.step,
            "metrics": dict(point.values),
            "timestamp": datetime.fromtimestamp(point.at, UTC).isoformat(),
            "log_id": f"{self.run_id}-{point.step}-{first}",
        }


def begin(records: Records, run: RunDirectory) -> Service:
    """Return what takes the numbers of one start of a run: the server that the environment names, or the run's logs.

    Raises:
        UsageError: trackio does not take the project's name, or the server refuses.
        ConnectionError, ValueError, httpx.HTTPError: the server does not answer.

    """
    from trackio.sqlite_storage import SQLiteStorage  # noqa: PLC0415  an extra, and it takes seconds

    try:
        SQLiteStorage.validate_project_name(records.project)
    except ValueError as error:
        raise UsageError(f"tracking.trackioProject: {error}") from error
    if os.environ.get(SPACE) or os.environ.get(SERVER):
        return TrackioServer(records)
    return TrackioInbox(records, run.logs, run.attempt)


class TrackioInbox:
    """Scalars in the run's logs, for the dashboard that is pointed there."""

    def __init__(self, records: Records, logs: Path, attempt: int) -> None:
        """Choose the file of this start; nothing is written yet."""
        from trackio.fragments import INBOX_DIR_NAME  # noqa: PLC0415  an extra

        self._records = records
        # A dashboard takes files by name, so that the first start's numbers come first.
        self._file = logs / FOLDER / INBOX_DIR_NAME / f"attempt-{attempt:06d}.jsonl"
        self._remembered: deque[bytes] = deque(maxlen=_MOST_REMEMBERED)

    def send(self, points: Sequence[Point]) -> None:
        """Append the numbers of some steps."""
        from trackio.fragments import FragmentWriter  # noqa: PLC0415  an extra

        lines = FragmentWriter.serialize_records(self._records.of(points))
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


class TrackioServer:
    """Scalars in a run of a trackio server, or of a Space on Hugging Face, which notes when they arrive."""

    def __init__(self, records: Records) -> None:
        """Find the server, and ask it whether this run may write.

        Raises:
            UsageError: it refuses.
            ConnectionError, ValueError, httpx.HTTPError: it does not answer, or not as a server of trackio does.

        """
        import httpx  # noqa: PLC0415  what trackio asks with
        from huggingface_hub import get_token  # noqa: PLC0415
        from trackio.remote_client import RemoteClient  # noqa: PLC0415  an extra
        from trackio.utils import parse_trackio_server_url  # noqa: PLC0415

        self._records = records
        space = os.environ.get(SPACE)
        # An address may have the token in it, and errors have the address.
        address, token = (space, None) if space else parse_trackio_server_url(os.environ[SERVER])
        if not (space.count("/") == 1 if space else address.startswith(("http://", "https://"))):
            raise self._refused(f"{SPACE if space else SERVER} names none")
        self._hf_token = get_token() if space else None
        try:
            self._client = RemoteClient(
                address,
                hf_token=self._hf_token,
                write_token=None if space else token or os.environ.get(WRITE_TOKEN),
                httpx_kwargs={"timeout": ANSWER_SECONDS},
            )
            self.send([])
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if 400 <= status < 500 and status not in _PASSING_REPLIES:
                raise self._refused(first_line(error).rstrip(".")) from error
            raise

    def send(self, points: Sequence[Point]) -> None:
        """Send the numbers of some steps."""
        self._client.predict(api_name="/bulk_log", logs=self._records.of(points), hf_token=self._hf_token)

    def close(self, *, complete: bool) -> None:
        """Do nothing: all is sent, and a run of trackio has no state."""

    def _refused(self, why: str) -> UsageError:
        return UsageError(
            f"tracking.trackioProject {self._records.project!r}: {why}. Expected in {SERVER} the "
            f"address of a trackio server that takes {WRITE_TOKEN}, or in {SPACE} USER/NAME of a Space that takes "
            "HF_TOKEN (in pods from a Secret, by envFrom of the container agent); without either the numbers "
            "go into the run's logs"
        )
