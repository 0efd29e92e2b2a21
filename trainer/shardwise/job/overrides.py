"""`--set path=value`: changes a job file's data before it is checked.

A path begins below `spec` (`training.steps`) or at the root (`spec.training.steps`, `metadata.name`); list items go by
index (`training.data.train.0.paths`), and what is quoted is one key (`metadata.labels."a.b/c"`). Values are YAML.
Whether the path and the value exist is for `validate` to say.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from shardwise.job.document import MAX_DEPTH, Document, Written, parse_value, shown
from shardwise.job.fields import Path, dotted, named_fields, undotted
from shardwise.job.spec import TrainingJob
from shardwise.protocol.errors import JobError, Problem
from shardwise.protocol.text import writable

_PART = re.compile(r'"[^"]+"|[^".=]+')
_NAME = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*")
_OVERRIDE = re.compile(r'((?:"[^"]*"|[^"=])*)=(.*)', re.DOTALL)


def apply_overrides(document: Document, overrides: Iterable[str]) -> Document:
    """Apply each override in turn; JobError if one is not `path=value` or leads through a value."""
    for override in overrides:
        document = _apply(document, override)
    return document


def _apply(document: Document, override: str) -> Document:
    if writable(override) != override:  # bytes of a shell that are no text
        raise JobError([Problem(path="", where="--set", given=shown(override), expected="text in UTF-8")])
    place = f"--set {override}"
    found = _OVERRIDE.fullmatch(override)
    if found is None or not _NAME.fullmatch(found[1].strip()):
        raise JobError(
            [Problem(path="", where="--set", given=shown(override), expected="path=value, such as training.steps=500")]
        )
    path, text = _path(found[1].strip()), found[2]
    if len(path) > MAX_DEPTH:
        raise _wrong_step(path[:3], place, f"a path of at most {MAX_DEPTH} parts")
    value, places = parse_value(text, place=place, path=path)
    kept = {known: written for known, written in document.places.items() if known[: len(path)] != path}
    around = {path[:depth]: Written(place) for depth in range(1, len(path) + 1)}
    return replace(document, data=_set(document.data, path, 0, value, place), places={**around, **kept, **places})


def _path(name: str) -> Path:
    parts = tuple(_key(part) for part in _PART.findall(name))
    return parts if parts[0] in named_fields(TrainingJob) else ("spec", *parts)


def _key(part: str) -> str | int:
    return part[1:-1] if part.startswith('"') else undotted(part)[0]


def _set(group: Any, path: Path, depth: int, value: Any, place: str) -> Any:
    """Return a copy of `group`, which lies at `path[:depth]`, with the value at `path` replaced."""
    if depth == len(path):
        return value
    key = path[depth]
    if isinstance(group, list):
        if not isinstance(key, int) or key > len(group):
            raise _wrong_step(path[: depth + 1], place, f"an index from 0 to {len(group)} in a list")
        changed = _set(group[key] if key < len(group) else _new(path, depth + 1), path, depth + 1, value, place)
        return [*group[:key], changed, *group[key + 1 :]]
    if isinstance(group, dict):
        inside = group.get(str(key), _new(path, depth + 1))
        return {**group, str(key): _set(inside, path, depth + 1, value, place)}
    raise _wrong_step(path[:depth], place, f"a group, and it holds {shown(group)}")


def _new(path: Path, depth: int) -> Any:
    """Return what takes the part of the path at `depth` where nothing is yet: a list if that is its first item."""
    return [] if path[depth : depth + 1] == (0,) else {}


def _wrong_step(path: Path, place: str, expected: str) -> JobError:
    return JobError([Problem(path=dotted(path), where=place, expected=expected)])
