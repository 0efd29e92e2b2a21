"""What a policy is: every module of `policies/` is one. `decide.py` and `maintain.py` hold their two ordered lists."""

from collections.abc import Iterable
from typing import Protocol

from shardwise_operator.decide.plan import Plan
from shardwise_operator.observe.observed import Observed


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
