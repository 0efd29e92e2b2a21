"""One line of metrics.jsonl, as far as it is a record of the run: a program may write there what it likes."""

import json
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from shardwise.protocol.message import MAX_INT32, Count, Seconds

_FIELDS: dict[str, TypeAdapter[Any]] = {
    **dict.fromkeys(("attempt", "of", "inARow"), TypeAdapter(Count)),
    **dict.fromkeys(("stepSeconds", "durableSeconds", "savedAt"), TypeAdapter(Seconds | None)),
    "heldOutLoss": TypeAdapter(Annotated[float, Field(allow_inf_nan=False)] | None),
    "reason": TypeAdapter(str),
}
"""What the leader reckons with; the other figures it only shows."""


def record_of(line: str) -> dict[str, Any]:
    """Return the record of a step, or of an event at one; empty if the line is something else.

    A field of it that the leader cannot reckon with is left out.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(record, dict) or not _is_step(record.get("step")):
        return {}
    for name in _FIELDS.keys() & record.keys():
        try:
            record[name] = _FIELDS[name].validate_python(record[name])
        except ValidationError:
            del record[name]
    return record if isinstance(record.get("event", ""), str | None) else {}


def _is_step(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT32
