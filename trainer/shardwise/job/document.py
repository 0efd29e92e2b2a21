"""Read the one YAML document of a job file, and remember where each value was written.

Plain scalars mean what YAML 1.2's core schema says: 3e-4 is a number, 1:30 is text, 0o17 is 15. A plain scalar that
common readers take for different things (on, yes, 017, 1_000) is refused, so that a file that is accepted here means
the same to an API server. Anchors, aliases, tags and further documents are refused. Knows no fields.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import yaml

from shardwise.job.fields import Path, dotted, undotted
from shardwise.protocol.errors import JobError, Problem

MAX_BYTES = 262_144
"""Of a person's file."""
MAX_OWN_BYTES = 16 << 20
"""Of what Shardwise wrote itself, with whole paths and all defaults."""
MAX_DEPTH = 32

_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("~", "null", "Null", "NULL", "")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,39})")
_BASED = re.compile(r"0o[0-7]{1,40}|0x[0-9a-fA-F]{1,40}")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]{1,40}|[0-9]{1,40}(\.[0-9]{0,40})?)([eE][-+]?[0-9]{1,4})?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_DISPUTED = re.compile(
    r"y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF"  # booleans to some
    r"|[-+]?0[0-9_]+|[-+]?0b[01_]+|[-+](0o|0x)[0-9a-fA-F_]+"  # octal to some; signed and binary
    r"|[-+]?(?=[0-9_.]*_)[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?|0[ox][0-9a-fA-F]*_[0-9a-fA-F_]*"  # digit groups
)
# JSON has one kind of number: 1e4 is the integer 10000, as long as a double is exact.
_MAX_EXACT = 2**53

# PyYAML has two classes of marks, by whether libyaml is used.
_Place = Callable[[Any], str]


class Written(NamedTuple):
    """Where a value was written, and, of one that messages would quote otherwise, how: 1.10 is the number 1.1."""

    where: str
    text: str = ""
    quoted: str = ""


@dataclass(frozen=True, kw_only=True)
class Document:
    """Plain data (dict, list, str, int, float, bool, None) and, by path, how each value was written."""

    data: dict[str, Any]
    places: Mapping[Path, Written]

    def where(self, path: Path) -> str:
        """Return where the value at `path`, or else the closest group around it, was written."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Written("")).where


class _Loader(yaml.CSafeLoader):
    """SafeLoader without YAML 1.1's guesses: every plain scalar stays text until `_scalar` reads it.

    By libyaml, which is what API servers' reader was translated from, and takes a tenth of the time.
    """


class _Dumper(yaml.CSafeDumper):
    """SafeDumper, by libyaml, that also quotes what `_scalar` would not read back as text."""


_Loader.yaml_implicit_resolvers = {}
for _pattern in (_INTEGER, _BASED, _FLOAT, _DISPUTED):
    _Dumper.add_implicit_resolver("tag:shardwise.dev,2026:quoted", re.compile(f"(?:{_pattern.pattern})$"), None)


def read_document(path: FilePath, *, limit: int = MAX_BYTES) -> Document:
    """Read the file at `path`; JobError if it cannot be read, has more bytes than `limit`, or is not one mapping."""
    source = str(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _refusal(source, f"a file that can be read ({error.strerror})") from error
    if len(content) > limit:
        raise _refusal(source, f"at most {limit} bytes", given=f"{len(content)} bytes")
    try:
        return parse_document(content.decode("utf-8-sig"), source=source, limit=limit)
    except UnicodeDecodeError as error:
        raise _refusal(source, "UTF-8 text", given=f"byte {error.start} that is none") from error


def parse_document(text: str, *, source: str, limit: int = MAX_BYTES) -> Document:
    """Read `text`; `source` is the file's name in messages."""
    if len(text) > limit:
        raise _refusal(source, f"at most {limit} characters", given=f"{len(text)} characters")
    places: dict[Path, Written] = {}
    data = _read(text, source, (), places, lines=True)
    if not isinstance(data, dict):
        raise _refusal(
            source, "a mapping that begins with apiVersion and kind", given="nothing" if data is None else shown(data)
        )
    return Document(data=data, places=places)


def parse_value(text: str, *, place: str, path: Path) -> tuple[Any, dict[Path, Written]]:
    """Read the value of an override at `path`; also return how each value in it was written, always at `place`."""
    places: dict[Path, Written] = {}
    return _read(text, place, path, places, lines=False), places


def write_document(data: Mapping[str, Any]) -> str:
    """Return YAML that `parse_document` reads back as `data`."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def shown(value: object) -> str:
    """Return a value as messages quote it."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def wrong(path: str, value: object, expected: str, hint: str = "") -> Problem:
    """Return the problem that the value at `path` is not what is expected."""
    return Problem(path=path, given=shown(value), expected=expected, hint=hint)


def located(problem: Problem, document: Document) -> Problem:
    """Return `problem` with the place in `document` of what it is about, and the value quoted as it was written."""
    path = undotted(problem.path)
    problem = replace(problem, where=document.where(path))
    _, text, quoted = document.places.get(path, Written(""))
    if not text or problem.given != quoted:
        return problem
    return replace(problem, given=text, hint=problem.hint.replace(f'("{quoted}")', f'("{text}")'))


def _refusal(where: str, expected: str, *, given: str = "", path: Path = (), hint: str = "") -> JobError:
    return JobError([Problem(path=dotted(path), where=where, given=given, expected=expected, hint=hint)])


def _read(text: str, source: str, path: Path, places: dict[Path, Written], *, lines: bool) -> Any:
    def place(mark: Any) -> str:
        return f"{source}:{mark.line + 1}" if lines else source

    try:
        for mark, expected in _unsupported(text):
            raise _refusal(place(mark), expected, path=path)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise _refusal(
            place(error.problem_mark or error.context_mark), f"YAML ({error.problem or error.context})", path=path
        ) from error
    except yaml.YAMLError as error:
        raise _refusal(source, "YAML made of printable characters", path=path) from error
    return None if node is None else _value(node, path, place, places)


def _unsupported(text: str) -> Iterator[tuple[Any, str]]:
    """Find the parts of YAML that a job file does without, before anything is built from them."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        documents += isinstance(event, yaml.DocumentStartEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if documents > 1:
            yield event.start_mark, "one document; give each job a file of its own"
        if depth > MAX_DEPTH:
            yield event.start_mark, f"at most {MAX_DEPTH} levels of nesting"
        if getattr(event, "anchor", None) is not None:
            yield event.start_mark, "values written out; anchors (&) and aliases (*) are not supported"
        if getattr(event, "tag", None) is not None:
            yield event.start_mark, "values without tags (!)"


def _value(node: yaml.Node, path: Path, place: _Place, places: dict[Path, Written]) -> Any:
    where = place(node.start_mark)
    places[path] = Written(where)
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, place, places)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, index), place, places) for index, item in enumerate(node.value)]
    assert isinstance(node, yaml.ScalarNode)
    if node.style:
        return node.value
    value = _scalar(node.value, path, where)
    if isinstance(value, int | float) and math.isfinite(value) and shown(value) != node.value:
        places[path] = Written(where, node.value, shown(value))
    return value


def _mapping(node: yaml.MappingNode, path: Path, place: _Place, places: dict[Path, Written]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        where = place(key_node.start_mark)
        key = _value(key_node, path, place, {})
        if not isinstance(key, str):
            raise _refusal(where, "keys that are text", path=path, **_given_as_key(key_node, key))
        if key in result:
            first = places[(*path, key)].where
            raise _refusal(where, f"each key once (first at {first})", given=f'"{key}" again', path=(*path, key))
        result[key] = _value(value_node, (*path, key), place, places)
        # A value may begin on the line after its key; the key is what one looks for.
        places[(*path, key)] = places[(*path, key)]._replace(where=where)
    return result


def _given_as_key(node: yaml.Node, key: object) -> dict[str, str]:
    """Return what a refusal says of a key that is no text: what stands in the file, which may be nothing."""
    if not isinstance(node, yaml.ScalarNode):
        return {"given": f"{shown(key)} as a key"}
    if not node.value:
        return {"given": "an empty key"}
    return {"given": f"the key {node.value}", "hint": f'quote it ("{node.value}")'}


def _scalar(text: str, path: Path, where: str) -> Any:
    if _DISPUTED.fullmatch(text):
        plain = "true or false" if text.isalpha() else "the number in plain digits"
        hint = f'write {plain}, or quote it ("{text}") if text is meant'
        raise _refusal(where, "a value that every YAML reader takes for the same", given=text, path=path, hint=hint)
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    return _float(text) if _FLOAT.fullmatch(text) else text


def _float(text: str) -> float | int:
    value = float(re.sub(r"\.(?=[iInN])", "", text))
    return int(value) if value.is_integer() and abs(value) < _MAX_EXACT else value
