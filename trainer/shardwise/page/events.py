"""launcher.jsonl as its readers take it: the events that a launcher writes; a line of any other kind is passed over."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from shardwise.page.curves import json_lines
from shardwise.page.document import HostTimes
from shardwise.protocol.contract import EVENTS, LOGS
from shardwise.protocol.message import Count, Message

_Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Fields(Message):
    """Of an event, what its readers reckon with or show."""

    model_config = ConfigDict(strict=True)

    event: str
    time: _Finite | None = None
    attempt: Count = 0
    host: Count = 0
    hosts: list[HostTimes] = Field(default_factory=list)
    rank: Count | None = None
    step: Count | None = None
    from_step: Count | None = None
    since_end_seconds: _Finite | None = None
    wait_seconds: _Finite = 0.0
    cause: str | None = None
    exit: str | None = None
    message: str = ""


_NEEDED: Mapping[str, frozenset[str]] = {
    "attempt": frozenset({"attempt"}),
    "slow": frozenset({"host"}),
    "running": frozenset({"fromStep", "sinceEndSeconds"}),
    "restarting": frozenset({"cause", "message", "waitSeconds"}),
}
"""By event, the fields without which it says nothing."""


def launcher_events(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a run directory's launcher.jsonl, oldest first."""
    yield from (line for line in json_lines(directory / LOGS / EVENTS) if _is_event(line))


def _is_event(line: Mapping[str, Any]) -> bool:
    try:
        name = _Fields.model_validate(line).event
    except ValidationError:
        return False
    return line.keys() >= _NEEDED.get(name, frozenset())
