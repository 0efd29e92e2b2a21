"""The ends of the trainers' logs, as many as a page has room for."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.page.document import LogTail
from shardwise.protocol.contract import LOGS

MOST_LOGS = 32
TAIL_BYTES = 6000
_LOG = re.compile(r"attempt-(\d+)/host-(\d+)\.log")
_ESCAPE_SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def log_tails(directory: Path, ended: Mapping[int, int | None]) -> dict[str, Any]:
    """Return `logs` and `logs_left_out` of a page: newest attempts first, in each the rank that ended it, then host 0.

    Args:
        directory: the run directory.
        ended: by attempt, the rank whose end was its end; None if none was.

    """
    paths = (directory / LOGS).glob("attempt-*/host-*.log")
    found = [
        (int(match[1]), int(match[2]), path)
        for path in paths
        if (match := _LOG.fullmatch(f"{path.parent.name}/{path.name}"))
    ]
    found.sort(key=lambda each: (-each[0], each[1] != ended.get(each[0]), each[1]))
    logs = [_tail(attempt, host, path) for attempt, host, path in found[:MOST_LOGS]]
    return {"logs": logs, "logs_left_out": len(found) - len(logs)}


def _tail(attempt: int, host: int, path: Path) -> LogTail:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        content = file.read(TAIL_BYTES)
    if size > TAIL_BYTES:
        content = content[content.find(b"\n") + 1 :]  # not half a line
    text = _ESCAPE_SEQUENCES.sub("", content.decode("utf-8", "replace"))
    return LogTail(attempt=attempt, host=host, size=size, text=text)
