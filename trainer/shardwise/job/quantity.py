"""Durations and quantities as Kubernetes writes them: "10m", "1h30m", "7d"; "500m", "2Gi", "1e3".

A value keeps the text that it was written as, so that a file is written back as its author wrote it; two texts for
one amount are different values with equal amounts.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

MAX_LENGTH = 32
MAX_DURATION_DAYS = 3650

DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h|d))+$"
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$"

# Go's units, and the day, which Go leaves out but a deadline wants.
_SECONDS = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
_SUFFIXES = (
    {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1)}
    | {suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)}
    | {f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)}
)


@dataclass(frozen=True)
class Written:
    """A text that YAML holds as a string, checked against the subclass's grammar when it is made (ValueError)."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Duration(Written):
    """A length of time above zero and up to ten years: "90s", "10m", "1h30m", "7d"."""

    def __post_init__(self) -> None:
        _check_grammar(self.text, DURATION_PATTERN, "a duration such as 90s, 10m, 1h30m or 7d")
        if not 0 < self.seconds <= MAX_DURATION_DAYS * 86400:
            raise ValueError(f"{self.text!r} is not a duration above 0s and up to {MAX_DURATION_DAYS}d")

    @property
    def seconds(self) -> float:
        """Return the length in seconds."""
        parts = re.findall(r"([0-9.]+)([a-z]+)", self.text)
        return float(sum(Decimal(number) * _SECONDS[unit] for number, unit in parts))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _schema(cls, DURATION_PATTERN)


@dataclass(frozen=True)
class Quantity(Written):
    """An amount of a resource, zero or more: "4", "500m" (thousandths), "2Gi" (binary), "1e3"; 4 is read as "4"."""

    def __post_init__(self) -> None:
        _check_grammar(self.text, QUANTITY_PATTERN, "a quantity such as 4, 500m, 2Gi or 1e3")

    @property
    def value(self) -> Decimal:
        """Return the exact amount in the resource's own unit (cores, bytes)."""
        number, suffix = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)", self.text).groups()  # type: ignore[union-attr]
        return Decimal(number) * _SUFFIXES[suffix]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _schema(cls, QUANTITY_PATTERN, core_schema.int_schema(ge=0))


def _check_grammar(text: str, pattern: str, expected: str) -> None:
    if len(text) > MAX_LENGTH or not re.fullmatch(pattern, text):
        raise ValueError(f"{text!r} is not {expected}")


def _schema(written: type[Written], pattern: str, number: CoreSchema | None = None) -> CoreSchema:
    """Take a string or a value, return a value; seen from outside it is a bounded string, or else a `number`."""

    def read(value: object) -> Written:
        if isinstance(value, written):
            return value
        if number is not None and type(value) is int:
            return written(str(value))
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is not text")  # noqa: TRY004 - pydantic turns only ValueError into a problem
        return written(value)

    text = core_schema.str_schema(pattern=pattern, max_length=MAX_LENGTH)
    return core_schema.no_info_plain_validator_function(
        read,
        json_schema_input_schema=text if number is None else core_schema.union_schema([number, text]),
        serialization=core_schema.plain_serializer_function_ser_schema(str, return_schema=text),
    )
