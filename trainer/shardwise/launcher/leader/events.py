"""DIR/logs/launcher.jsonl: the events of a run, one JSON object a line."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.protocol.contract import EVENTS, LOGS, Progress
from shardwise.protocol.storage import passing_over


class Events:
    """launcher.jsonl, for appending. Each event is one write, so that a kill can cut short only the last line.

    An event that the storage does not take is lost: no decision reads it.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOGS / EVENTS

    def write(self, event: str, **more: Any) -> None:
        """Append an event."""
        line = (json.dumps({"time": round(time.time(), 3), "event": event, **more}) + "\n").encode()
        with passing_over(), self._path.open("ab", buffering=0) as file:
            if (written := file.write(line)) < len(line):  # the rest found no room, and the next one needs its own line
                file.truncate(file.tell() - written)


def host_times(progress: Mapping[int, Progress]) -> list[dict[str, Any]]:
    """Return for each host where its trainer's time of an attempt went, as it was last heard."""
    return [
        {
            "host": host,
            "step": last.step,
            "stepSeconds": round(last.each_seconds, 4),
            "ownSeconds": round(last.own_seconds, 6) if last.measured else None,
            "phases": {name: round(seconds, 4) for name, seconds in last.seconds.items()},
        }
        for host, last in sorted(progress.items())
    ]
