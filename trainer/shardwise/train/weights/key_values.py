"""Values of keys of a config.json, each checked; every error names the key, the family and its model type."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from shardwise.protocol.errors import DataError
from shardwise.train.weights.family import Family

_MOST_LISTED = 4


def refused(family: Family, name: str, given: Any, expected: str) -> DataError:
    """Return the error of a key whose value this trainer does not compute; `given` is shown as Python writes it."""
    if isinstance(given, list | tuple) and len(given) > _MOST_LISTED:
        given = f"[{', '.join(map(repr, given[:_MOST_LISTED]))}, ...]"
    elif not isinstance(given, str):
        given = repr(given)
    return DataError(
        f"config.json: {name} is {given}, expected {expected} for {family.title} (model_type {family.name}); a model "
        "that differs in it cannot be imported"
    )


def whole(family: Family, published: Mapping[str, Any], name: str, default: int) -> int:
    """Return a key that is a whole number; null counts as left out."""
    value = published.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise refused(family, name, repr(value), "a whole number from 1")
    return value


def real(family: Family, name: str, value: Any, *, least: float = 0.0, most: float | None = None) -> float:
    """Return a value that is a number above 0, at least `least` and at most `most`."""
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 < value < float("inf")
        or not least <= value <= (most or value)
    ):
        bounds = f"a number from {least:g}" if least else "a number above 0"
        raise refused(family, name, repr(value), bounds + ("" if most is None else f", at most {most:g}"))
    return float(value)


def squared(theirs: float) -> float:
    """Return the number of whose root theirs is the inverse; to 12 digits, so that 1 / 64 is the inverse of 4096's."""
    return float(f"{1 / theirs**2:.12g}")


def rooted(ours: float) -> float:
    """Return the inverse of a number's root with as few digits as give that number back, if any do."""
    exact = 1 / math.sqrt(ours)
    candidates = (float(f"{exact:.{digits}g}") for digits in range(1, 17))
    return next((theirs for theirs in candidates if squared(theirs) == ours), exact)


def one_of(family: Family, name: str, value: Any, expected: Iterable[Any]) -> Any:
    """Return a value that is one of a few."""
    expected = tuple(expected)
    if value not in expected:
        raise refused(family, name, value, " or ".join(map(str, expected)))
    return value


def section(family: Family, name: str, value: Any) -> Mapping[str, Any]:
    """Return a value that has keys of its own; null has none."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise refused(family, name, repr(value), "an object, or null")
    return value
