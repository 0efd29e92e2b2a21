"""What a pass decides, which is the job's next state and the steps that lead there; and what a policy is.

Nearly every module of `policies/` is one; two hold a class that is, and `phase.py` stands beside them. `decide.py` and
`maintain.py` hold their two ordered lists.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import State
from shardwise_operator.reasons import EventType, event_type
from shardwise_operator.runtime.kinds import Kind


@dataclass(frozen=True)
class Create:
    """Create an object. Its name is the precondition: an object that exists already is not touched."""

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
class ReplaceStatus:
    """Replace the status of an object that still has this UID and resourceVersion."""

    kind: Kind
    obj: Mapping[str, Any]


@dataclass(frozen=True)
class Delete:
    """Delete the object that has this UID; without `grace_seconds`, in its own grace period.

    One that `may_stay` does so where the operator may not delete it: it harms nothing.
    """

    kind: Kind
    name: str
    uid: str
    grace_seconds: int | None = None
    may_stay: bool = False


@dataclass(frozen=True)
class Event:
    """An Event about the job, sent once its status is written."""

    reason: str
    message: str

    @property
    def type(self) -> EventType:
        """Return Normal or Warning, by the reason."""
        return event_type(self.reason)


@dataclass(frozen=True)
class RequestStop:
    """Ask the agent of host 0 to save and stop."""

    address: str


@dataclass(frozen=True)
class RequestSave:
    """Ask the agent of host 0 to save and go on: the nodes of these hosts leave. `accepted` is sent once it agrees."""

    address: str
    leaving: Mapping[str, str]
    accepted: Event


Step = Create | Patch | ReplaceStatus | Delete | RequestStop | RequestSave


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One pass: the steps in their order, then the state, then the events.

    `requeue_after_seconds` is when to look again if nothing happens before; None if only an event can change the plan.
    """

    state: State
    steps: tuple[Step, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_after_seconds: float | None = None

    @classmethod
    def warning(cls, state: State, reason: str, message: str) -> "Plan":
        """Return the plan of a state with this reason and message, which are a warning too."""
        state = replace(state, reason=reason, message=message)
        return cls(state=state, events=(Event(reason, message),))


class Policy(Protocol):
    """One decision about a job. It is pure: it depends on what was observed and on the time alone."""

    def decide(self, seen: Observed, now: float, /) -> Plan | None:
        """Return what to do, or None if there is nothing to do. `now` is in seconds since the epoch."""

    def wake(self, seen: Observed, now: float, /) -> float | None:
        """Return in how many seconds time alone may change the decision; None if only an event can."""


def never(_seen: Observed, _now: float) -> None:
    """Serve as `wake` of a policy that waits for no time."""


def soonest(seconds: Iterable[float | None]) -> float | None:
    """Return the least of several times, None without any."""
    return min((each for each in seconds if each is not None), default=None)
