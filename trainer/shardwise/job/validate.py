"""Turns plain data into a TrainingJob, or into problems in our own words.

pydantic finds what is wrong; what is said about it comes from the field's description (`job/fields.py`), so every kind
of error reads the same and names its bounds.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from shardwise.job.document import Document, shown
from shardwise.job.errors import JobError, Problem
from shardwise.job.fields import ITEM, Path, dotted, kind_at, leaves, named_fields, takes_null
from shardwise.job.spec import TrainingJob
from shardwise.job.words import any_of, close_to


def validate(document: Document) -> TrainingJob:
    """The job in `document`; JobError with every field that is wrong."""
    nulls = list(_nulls(document, document.data, ()))
    try:
        job = TrainingJob.model_validate(document.data, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False)
        found = [_problem(document, detail) for detail in details if not _follows(detail, details)]
        known = {problem.path for problem in nulls}
        raise JobError([*nulls, *(problem for problem in found if problem.path not in known)]) from None
    if nulls:
        raise JobError(nulls)
    return job


def _nulls(document: Document, value: object, path: Path) -> Iterator[Problem]:
    """A key without a value is refused as an API server refuses it, except where null means something."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _nulls(document, item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _nulls(document, item, (*path, index))
    elif value is None and not _takes_null(path):
        kind = kind_at(TrainingJob, path)
        if kind is not None:
            hint = "take the key out for its default"
            yield _found(document, path, given="no value", expected=kind.expected, hint=hint)


def _takes_null(path: Path) -> bool:
    group = kind_at(TrainingJob, path[:-1])
    info = named_fields(group.model).get(str(path[-1])) if path and group and group.model else None
    return info is not None and takes_null(info)


def _follows(detail: ErrorDetails, details: list[ErrorDetails]) -> bool:
    """Whether an error only says that an item of the same list is wrong, which an error of its own says better."""
    place = detail["loc"]
    return detail["type"] == "too_short" and any(
        other["loc"][: len(place)] == place and len(other["loc"]) > len(place) for other in details
    )


def _problem(document: Document, detail: ErrorDetails) -> Problem:
    path = detail["loc"]
    if path and path[-1] == "[key]":
        return _found(document, path[:-1], given=shown(path[-2]), expected="a key of 1 to 317 characters")
    if detail["type"] == "extra_forbidden":
        return _unknown_key(document, path)
    kind = kind_at(TrainingJob, path)
    assert kind is not None
    given = "nothing" if detail["type"] == "missing" else _given(detail["input"])
    return _found(document, path, given=given, expected=kind.expected, hint=_hint(detail, kind.range))


def _given(value: Any) -> str:
    return f"{len(value)} items" if isinstance(value, list | tuple) else shown(value)


def _hint(detail: ErrorDetails, choices: str) -> str:
    value = detail["input"]
    if detail["type"] == "literal_error" and isinstance(value, str):
        return close_to(value, choices.split(", "))
    if detail["type"] == "string_type" and isinstance(value, bool | int | float):
        return f'quote it ("{shown(value)}") if text is meant'
    return ""


def _unknown_key(document: Document, path: Path) -> Problem:
    group = kind_at(TrainingJob, path[:-1])
    assert group is not None
    assert group.model is not None
    key, known = str(path[-1]), list(named_fields(group.model))
    hint = _elsewhere(key) or close_to(key, known)
    return _found(document, path, given=f'the unknown key "{key}"', expected=f"one of {any_of(known)}", hint=hint)


def _elsewhere(key: str) -> str:
    """Where else the file has a field of this name."""
    places = [dotted(leaf.path[:-1]) for leaf in leaves(TrainingJob) if leaf.path[-1] == key and ITEM not in leaf.path]
    return f'"{key}" belongs to {places[0]}' if places else ""


def _found(document: Document, path: Path, *, given: str, expected: str, hint: str = "") -> Problem:
    return Problem(path=dotted(path), where=document.where(path), given=given, expected=expected, hint=hint)
