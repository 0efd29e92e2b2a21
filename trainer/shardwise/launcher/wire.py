"""Dataclasses as the JSON objects that agents exchange: the same fields, in camelCase.

Called by the records of this package. Values are what JSON has, other such dataclasses, or enums of text.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def camel(record: Any) -> dict[str, Any]:
    """The fields of a dataclass by their JSON names; nested dataclasses too."""
    return {camel_name(field.name): _value(getattr(record, field.name)) for field in fields(record)}


def snake(data: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of the names of `camel`, for the constructor of a dataclass; values stay as they are."""
    return {re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}", name): value for name, value in data.items()}


def camel_name(name: str) -> str:
    """`age_seconds` as `ageSeconds`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _value(value: Any) -> Any:
    return camel(value) if hasattr(value, "__dataclass_fields__") else value
