"""What a pass decides: the job's next state, and the writes that lead there.

Made by the policies, carried out by `apply.py`. Data only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwise_operator.runtime.kinds import Kind
from shardwise_operator.state import State


@dataclass(frozen=True)
class Create:
    """POST an object. Its name is the precondition: one that is there is not touched."""

    kind: Kind
    manifest: Mapping[str, Any]


@dataclass(frozen=True)
class Patch:
    """Merge a patch into the object that has this UID."""

    kind: Kind
    name: str
    uid: str
    patch: Mapping[str, Any]


@dataclass(frozen=True)
class Delete:
    """Delete the object that has this UID; without `grace_seconds` in its own time."""

    kind: Kind
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True)
class Event:
    """What people are told once the status that says it is written. `type` is Normal or Warning."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True)
class AskStop:
    """Ask the agent of host 0 to save and stop."""

    address: str


@dataclass(frozen=True)
class AskSave:
    """Ask the agent of host 0 to save and go on, because of the nodes of these hosts; `heard` is told if it does so."""

    address: str
    leaving: Mapping[str, str]
    heard: Event


Step = Create | Patch | Delete | AskStop | AskSave


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One pass: the writes in their order, then the state, then the events.

    `again_seconds` is when to look again if nothing happens before; None where only an event can change the plan.
    """

    state: State
    steps: tuple[Step, ...] = ()
    events: tuple[Event, ...] = ()
    again_seconds: float | None = None
