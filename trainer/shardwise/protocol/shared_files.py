"""What metrics.jsonl and summary.json say of a run: a program of its own may have files of these names too.

Who reads them reckons with what it finds, so what no run writes is passed over here.
"""

import math
from collections.abc import Mapping
from sys import intern
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from shardwise.protocol.message import MAX_INT32, Count, Seconds

_Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Results(BaseModel):
    loss: _Finite | None = None
    accuracy: _Finite | None = None
    reward: _Finite | None = None
    prompts: Count | None = None


class _Memory(BaseModel):
    device: str
    params_bytes: int
    optimizer_bytes: int
    batch_bytes: int
    temporary_bytes: int


_FIELDS: dict[str, TypeAdapter[Any]] = {
    **dict.fromkeys(("name", "status", "digest", "initialDigest", "error"), TypeAdapter(str)),
    **dict.fromkeys(("steps", "of"), TypeAdapter(Count)),
    "restarts": TypeAdapter(dict[str, Count]),
    **dict.fromkeys(("phases", "goodput", "entropy"), TypeAdapter(dict[str, _Finite])),
}
"""Of the summary, what its readers reckon with or show."""
_OF_EVENTS: dict[str, TypeAdapter[Any]] = {
    **dict.fromkeys(("attempt", "of", "devices", "inARow"), TypeAdapter(Count | None)),
    **dict.fromkeys(("time", "savedAt", "blockedSeconds", "durableSeconds"), TypeAdapter(Seconds | None)),
    **dict.fromkeys(("evaluatedAt", "evaluationSeconds"), TypeAdapter(Seconds)),
    **dict.fromkeys(("digest", "reason"), TypeAdapter(str)),
    **dict.fromkeys(("heldOutLoss", "heldOutAccuracy", "tokens"), TypeAdapter(_Finite | None)),
    "sets": TypeAdapter(dict[str, _Results]),
    "program": TypeAdapter(bool),
    "steps": TypeAdapter(list[Count]),
    "mesh": TypeAdapter(dict[str, Count]),
    "memory": TypeAdapter(list[_Memory]),
}
"""Of an event, the same."""


def summary_of_run(read: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary without the fields that have no value, or one that no run writes."""
    return {name: value for name, value in read.items() if _fits(_FIELDS.get(name), value)}


def line_of_run(line: object) -> dict[str, Any] | None:
    """Return what is a step's record, with its numbers alone, or an event at a step; None of any other line.

    Of an event a field is left out that has a value which no run writes there.
    """
    if not isinstance(line, dict) or not _is_step(line.get("step")):
        return None
    event = line.get("event")
    if event is None:  # of weeks there are many, whose names would be more than their numbers
        return {
            intern(name): value
            for name, value in line.items()
            if name != "event" and (value is None or _is_number(value))
        }
    if not isinstance(event, str):
        return None
    wrong = {name for name in _OF_EVENTS.keys() & line.keys() if not _fits(_OF_EVENTS[name], line[name])}
    return {name: value for name, value in line.items() if name not in wrong} if wrong else line


def _fits(field: TypeAdapter[Any] | None, value: object) -> bool:
    if field is None:
        return value is not None
    try:
        field.validate_python(value, strict=True)
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
