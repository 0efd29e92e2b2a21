"""Turn plain data into a TrainingJob (or another model of the same kind), or into problems with our own messages.

pydantic finds what is wrong; the message is made from the field's description (`job/fields.py`), so every kind of
error reads the same and names its bounds.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from shardwise.job.document import Document, located, shown
from shardwise.job.fields import ITEM, Path, dotted, kind_at, leaves, named_fields, takes_null
from shardwise.job.spec import TrainingJob
from shardwise.job.spec.pod import MOVED
from shardwise.protocol.errors import JobError, Problem
from shardwise.protocol.strict_model import StrictModel
from shardwise.protocol.text import any_of, close_to

Group = TypeVar("Group", bound=StrictModel)
_UNKNOWN = "extra_forbidden"  # pydantic's word for an unknown key
_MOST_UNKNOWN = 20


@dataclass(frozen=True)
class _Reading:
    """A document, and the model that it is read as."""

    document: Document
    model: type[StrictModel]


def validate(document: Document) -> TrainingJob:
    """Return the job in `document`; JobError with every field that is wrong."""
    return validate_as(TrainingJob, document)


def validate_as(model: type[Group], document: Document) -> Group:
    """Return the `model` in `document`; JobError with every field that is wrong, of unknown ones the first."""
    reading = _Reading(document, model)
    nulls = list(_nulls(reading, document.data, ()))
    try:
        value = model.model_validate(document.data, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False)
        found = list(_problems(reading, [detail for detail in details if not _follows(detail, details)]))
        known = {problem.path for problem in nulls}
        raise JobError([*nulls, *(problem for problem in found if problem.path not in known)]) from None
    if nulls:
        raise JobError(nulls)
    return value


def validate_known(model: type[Group], document: Document) -> Group:
    """Do as `validate_as`, but leave out fields that only a newer release knows."""
    data = deepcopy(document.data)
    try:
        return model.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if detail["type"] == _UNKNOWN:
                _leave_out(data, detail["loc"])
    return validate_as(model, replace(document, data=data))


def _leave_out(data: Any, path: Path) -> None:
    for key in path[:-1]:
        data = data[key]
    del data[path[-1]]


def _nulls(reading: _Reading, value: object, path: Path) -> Iterator[Problem]:
    """Refuse a key without a value, unless null means something; an API server would leave the key out."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _nulls(reading, item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _nulls(reading, item, (*path, index))
    elif value is None and not _takes_null(reading, path):
        kind = kind_at(reading.model, path)
        if kind is not None:
            of_override = reading.document.where(path).startswith("--set ")
            of_its_own = "give its default: " if _has_default(reading, path) else ""
            hint = f"{of_its_own}--set takes no key out" if of_override else "take the key out for its default"
            yield _found(reading, path, given="no value", expected=kind.expected, hint=hint)


def _takes_null(reading: _Reading, path: Path) -> bool:
    info = _field(reading, path)
    return info is not None and takes_null(info)


def _has_default(reading: _Reading, path: Path) -> bool:
    info = _field(reading, path)
    return info is not None and info.get_default(call_default_factory=False) not in (None, PydanticUndefined)


def _field(reading: _Reading, path: Path) -> FieldInfo | None:
    group = kind_at(reading.model, path[:-1])
    return named_fields(group.model).get(str(path[-1])) if path and group and group.model else None


def _follows(detail: ErrorDetails, details: list[ErrorDetails]) -> bool:
    """Return whether an error only repeats that an item of its list is wrong, which has an error of its own."""
    place = detail["loc"]
    return detail["type"] == "too_short" and any(
        other["loc"][: len(place)] == place and len(other["loc"]) > len(place) for other in details
    )


def _problems(reading: _Reading, details: list[ErrorDetails]) -> Iterator[Problem]:
    """Yield what is wrong; of many unknown keys, which may be those of another kind of file, name the first ones."""
    more = [detail["loc"] for detail in details if detail["type"] == _UNKNOWN][_MOST_UNKNOWN:]
    left_out = set(more)
    yield from (_problem(reading, detail) for detail in details if detail["loc"] not in left_out)
    if more:
        given = f"{len(more):,} more unknown {'keys' if len(more) > 1 else 'key'}"
        where = reading.document.where(more[0])
        yield Problem(path=dotted(more[0][:-1]), where=where, given=given, expected="none")


def _problem(reading: _Reading, detail: ErrorDetails) -> Problem:
    path = detail["loc"]
    if path and path[-1] == "[key]" and detail["input"] == path[-2]:  # else a label of this name
        expected = _own_words(detail) or f"a key of 1 to {detail.get('ctx', {}).get('max_length', 317)} characters"
        return _found(reading, path[:-1], given=shown(path[-2]), expected=expected)
    if detail["type"] == _UNKNOWN:
        return _unknown_key(reading, path)
    kind = kind_at(reading.model, path)
    assert kind is not None
    given = "nothing" if detail["type"] == "missing" else _given(detail["input"])
    return _found(
        reading, path, given=given, expected=_own_words(detail) or kind.expected, hint=_hint(detail, kind.range)
    )


def _own_words(detail: ErrorDetails) -> str:
    """Return what a check of ours says that it expects, which is more than the field's description does."""
    words = str(detail.get("ctx", {}).get("error", "")) if detail["type"] == "value_error" else ""
    return words.removeprefix("expected ") if words.startswith("expected ") else ""


def _given(value: Any) -> str:
    return f"{len(value)} items" if isinstance(value, list | tuple) else shown(value)


def _hint(detail: ErrorDetails, choices: str) -> str:
    value = detail["input"]
    if detail["type"] == "literal_error" and isinstance(value, str):
        return close_to(value, choices.split(", "))
    if detail["type"] == "string_type" and isinstance(value, bool | int | float):
        return f'quote it ("{shown(value)}") if text is meant'
    return ""


def _unknown_key(reading: _Reading, path: Path) -> Problem:
    group = kind_at(reading.model, path[:-1])
    assert group is not None
    assert group.model is not None
    key, known = str(path[-1]), list(named_fields(group.model))
    moved = f"it is in spec.pod.template.{MOVED[key]}" if path[:-1] == ("spec", "pod") and key in MOVED else ""
    hint = moved or _elsewhere(reading, key) or close_to(key, known)
    return _found(reading, path, given=f'the unknown key "{key}"', expected=f"one of {any_of(known)}", hint=hint)


def _elsewhere(reading: _Reading, key: str) -> str:
    """Return where else the file has a field of this name."""
    places = [
        dotted(leaf.path[:-1]) for leaf in leaves(reading.model) if leaf.path[-1] == key and ITEM not in leaf.path
    ]
    return f'"{key}" belongs to {places[0]}' if places else ""


def _found(reading: _Reading, path: Path, *, given: str, expected: str, hint: str = "") -> Problem:
    return located(Problem(path=dotted(path), given=given, expected=expected, hint=hint), reading.document)
