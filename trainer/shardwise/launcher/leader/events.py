"""DIR/logs/launcher.jsonl: the events of a run, one JSON object a line."""

import json
import os
import time
from pathlib import Path
from typing import Any

from shardwise.protocol.contract import EVENTS, LOGS
from shardwise.protocol.storage import passing_over


class Events:
    """launcher.jsonl, for appending. Each event is one write, so that a kill can cut short only the last line.

    An event that the storage does not take is lost: no decision reads it.
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
