"""What metrics.jsonl and summary.json say of a run: a program of its own may have files of these names too.

Who reads them reckons with what it finds, so what no run writes is passed over here.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from shardwise.protocol.message import MAX_INT32, Count

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_FIELDS: dict[str, TypeAdapter[Any]] = {
    **dict.fromkeys(("name", "status", "digest", "initialDigest", "error"), TypeAdapter(str)),
    **dict.fromkeys(("steps", "of"), TypeAdapter(Count)),
    "restarts": TypeAdapter(dict[str, Count]),
    **dict.fromkeys(("phases", "goodput", "entropy"), TypeAdapter(dict[str, _Finite])),
}
"""Of the summary, what its readers reckon with or show."""


def summary_of_run(read: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary without the fields that have no value, or one that no run writes."""
    return {name: value for name, value in read.items() if _fits(name, value)}


def line_of_run(line: object) -> dict[str, Any] | None:
    """Return what is a step's record, with its numbers alone, or an event at a step; None of any other line."""
    if not isinstance(line, dict) or not _is_step(line.get("step")):
        return None
    event = line.get("event")
    if event is None:
        return {name: value for name, value in line.items() if name != "event" and (value is None or _is_number(value))}
    return line if isinstance(event, str) else None


def _fits(name: str, value: object) -> bool:
    if name not in _FIELDS:
        return value is not None
    try:
        _FIELDS[name].validate_python(value)
    except ValidationError:
        return False
    return True


def _is_step(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT32


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # of more digits than a float has room for
        return False
