"""One line of metrics.jsonl, as far as it is a record of the run: a program may write there what it likes."""

import json
from typing import Any

from shardwise.protocol.message import MAX_INT32


def record_of(line: str) -> dict[str, Any]:
    """Return the record of a step, or of an event at one; empty if the line is something else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(record, dict) or not _is_step(record.get("step")):
        return {}
    return record if isinstance(record.get("event", ""), str | None) else {}


def _is_step(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT32
