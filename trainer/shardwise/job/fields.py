"""The fields of the job file as data: path, type, bounds and notes, read from the models.

Error texts, `explain` and the identity table are made from this, so that a bound is written once, in `job/spec`.
"""

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from shardwise.job.quantity import MAX_DURATION_DAYS, Duration, Quantity
from shardwise.job.spec.base import Grammar
from shardwise.protocol.strict_model import StrictModel

Path = tuple[str | int, ...]
ITEM = "*"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What values a field takes.

    `name` is the type; `range` its bounds as text, or "" without any; `expected` both as a sentence's object;
    `model` the fields of a group, `item` the kind of a list's items or a map's values.
    """

    name: str
    range: str
    expected: str
    model: type[StrictModel] | None = None
    item: "Kind | None" = None


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A field that holds a value rather than a group; `path` has ITEM where a list's index goes."""

    path: Path
    info: FieldInfo
    kind: Kind

    @property
    def name(self) -> str:
        """Return the dotted path."""
        return dotted(self.path)


def dotted(path: Iterable[str | int]) -> str:
    """Return the path as errors and overrides write it: `spec.training.data.train.0.paths`."""
    return ".".join(str(part) for part in path)


def undotted(path: str) -> Path:
    """Return the path that `dotted` would write so; a number of more digits than an index has is a key."""
    return tuple(int(part) if part.isdecimal() and len(part) < 10 else part for part in path.split("."))


def named_fields(model: type[StrictModel]) -> Mapping[str, FieldInfo]:
    """Return the fields of a group by their name in YAML."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def leaves(model: type[StrictModel], path: Path = ()) -> Iterator[Leaf]:
    """Yield every leaf below `model`, in the order of the models."""
    for name, info in named_fields(model).items():
        kind = kind_of(info)
        if kind.model is not None:
            yield from leaves(kind.model, (*path, name))
        elif kind.item is not None and kind.item.model is not None:
            yield from leaves(kind.item.model, (*path, name, ITEM))
        else:
            yield Leaf(path=(*path, name), info=info, kind=kind)


def kind_at(model: type[StrictModel], path: Path) -> Kind | None:
    """Return the kind of the value at `path` below `model`, or None if the models have no such path."""
    kind: Kind | None = Kind(name="group", range="", expected="a mapping", model=model)
    for part in path:
        if kind is None:
            return None
        fields: Mapping[str, FieldInfo] = {} if kind.model is None else named_fields(kind.model)
        kind = kind_of(fields[str(part)]) if part in fields else kind.item
    return kind


def kind_of(info: FieldInfo) -> Kind:
    """Return the kind of a field."""
    return _kind(info.annotation, info.metadata)


def values_at(group: StrictModel, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values below `group` at a dotted path, ITEM for each item of a list, with the path of each.

    A group that was left out has no values.
    """
    found: list[tuple[Path, Any]] = [((), group)]
    for part in path.split("."):
        if part == ITEM:
            found = [((*place, index), item) for place, items in found for index, item in enumerate(items)]
        else:
            found = [((*place, part), _field(value, part)) for place, value in found if value is not None]
    yield from ((dotted(place), value) for place, value in found)


def _field(group: StrictModel, part: str) -> Any:
    names = {info.alias or name: name for name, info in type(group).model_fields.items()}
    return getattr(group, names[part])


def takes_null(info: FieldInfo) -> bool:
    """Return whether null is a value of its own in a field, different from leaving it out."""
    return type(None) in get_args(info.annotation) and info.default is not None


def _kind(annotation: Any, notes: Iterable[Any]) -> Kind:
    annotation, notes = _unwrapped(annotation, list(notes))
    bounds = {name: getattr(note, name) for note in notes for name in _BOUNDS if hasattr(note, name)}
    origin = get_origin(annotation)
    if origin is Literal:
        return _choice([str(value) for value in get_args(annotation)])
    if origin is tuple:
        least = bounds.get("min_length", 0)
        size = f"{least} to {bounds['max_length']} items" if least else f"up to {bounds['max_length']} items"
        return Kind(name="list", range=size, expected=f"a list of {size}", item=_kind(get_args(annotation)[0], ()))
    if origin is dict:
        size = f"up to {bounds['max_length']} entries"
        value = get_args(annotation)[1]
        item = None if value is Any else _kind(value, ())
        return Kind(name="map", range=size, expected=f"a mapping of {size}", item=item)
    if annotation is str:
        return _text(bounds, [note.words for note in notes if isinstance(note, Grammar)])
    if annotation in (int, float):
        return _number("integer" if annotation is int else "number", _range(bounds))
    return _plain(annotation)


_BOUNDS = ("ge", "gt", "le", "lt", "min_length", "max_length")


def _unwrapped(annotation: Any, notes: list[Any]) -> tuple[Any, list[Any]]:
    """Take `| None` and Annotated off, and collect the notes met on the way."""
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = (option for option in get_args(annotation) if option is not type(None))
        return _unwrapped(annotation, notes)
    if get_origin(annotation) is Annotated:
        annotation, *found = get_args(annotation)
        for note in found:
            notes += note.metadata if isinstance(note, FieldInfo) else [note]
        return _unwrapped(annotation, notes)
    return annotation, notes


def _choice(values: list[str]) -> Kind:
    words = ", ".join(values)
    return Kind(name="string", range=words, expected=words if len(values) == 1 else f"one of {words}")


def _text(bounds: Mapping[str, int], grammar: list[str]) -> Kind:
    size = f"{bounds.get('min_length', 0)} to {bounds['max_length']} characters"
    words = ": ".join([size, *grammar])
    return Kind(name="string", range=words, expected=f"text of {words}")


def _number(name: str, bounds: str) -> Kind:
    article = "an" if name == "integer" else "a"
    return Kind(name=name, range=bounds, expected=f"{article} {name} {bounds}")


def _plain(annotation: Any) -> Kind:
    if annotation is bool:
        return Kind(name="boolean", range="true, false", expected="true or false")
    if annotation is Duration:
        bounds = f"above 0s, up to {MAX_DURATION_DAYS}d"
        return Kind(name="duration", range=bounds, expected=f"a duration such as 90s, 10m, 1h30m or 7d, {bounds}")
    if annotation is Quantity:
        return Kind(name="quantity", range="zero or more", expected="a quantity such as 4, 500m, 2Gi or 1e3")
    assert issubclass(annotation, StrictModel)
    return Kind(name="group", range="", expected="a mapping", model=annotation)


def _range(bounds: Mapping[str, float]) -> str:
    low = f"from {bounds['ge']:.12g}" if "ge" in bounds else f"above {bounds['gt']:.12g}"
    if "lt" in bounds:
        return f"{low}, below {bounds['lt']:.12g}"
    return f"{low}{' to' if 'ge' in bounds else ', up to'} {bounds['le']:.12g}"
