"""The ends of the trainers' logs, as many as a page has room for."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.page.document import LogTail
from shardwise.protocol.bounded_log import tail_of
from shardwise.protocol.contract import trainer_logs

MOST_LOGS = 32
TAIL_BYTES = 6000
_ESCAPE_SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def log_tails(directory: Path, ended: Mapping[int, int | None]) -> dict[str, Any]:
    """Return `logs` and `logs_left_out` of a page: newest attempts first, in each the rank that ended it, then host 0.

    Args:
        directory: the run directory.
        ended: by attempt, the rank whose end was its end; None if none was.

    """
    found = sorted(trainer_logs(directory), key=lambda each: (-each[0], each[1] != ended.get(each[0]), each[1]))
    logs = [_tail(attempt, host, path) for attempt, host, path in found[:MOST_LOGS]]
    return {"logs": logs, "logs_left_out": len(found) - len(logs)}


def _tail(attempt: int, host: int, path: Path) -> LogTail:
    content, size = tail_of(path, TAIL_BYTES)
    if size > TAIL_BYTES:
        content = content[content.find(b"\n") + 1 :]  # not half a line
    text = _ESCAPE_SEQUENCES.sub("", content.decode("utf-8", "replace"))
    return LogTail(attempt=attempt, host=host, size=size, text=text)
