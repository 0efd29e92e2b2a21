"""Where a run's wall time went, in categories that add up to it.

Time between attempts belongs to the start or to a recovery. The time of an attempt is divided by rank 0's report on its
phases.

    step        training: steps that counted
    lostSteps   training that a later attempt repeated, because no checkpoint had it
    save        training waited for a save
    wait        training waited for data
    start, compile, restore     what came before the first step of the command's first attempt
    recovery    from a bad end to the first step after it, waiting for hosts included
    other       the rest: evaluations, the last save, the end, and a program that reports nothing once it is under way
"""

from collections.abc import Mapping

from shardwise.protocol.contract import Phase
from shardwise.protocol.run_status import GOODPUT_CATEGORIES

_START = ("interpreter", "imports", Phase.START, Phase.JOIN, Phase.DATA, Phase.INIT)

UNDER_WAY = "underWay"
"""In place of phases: the time for which a program that reports none counts as under way."""


def nothing() -> dict[str, float]:
    """Return every category at zero."""
    return dict.fromkeys(GOODPUT_CATEGORIES, 0.0)


def attempt(elapsed_seconds: float, seconds: Mapping[str, float], *, recovering: bool) -> dict[str, float]:
    """Divide the time of one attempt into categories; the sum is `elapsed_seconds`.

    Args:
        elapsed_seconds: since rank 0 got its orders.
        seconds: rank 0's time by phase. The time in steps includes the waits for data.
        recovering: whether the attempt follows a bad end.

    """
    split = nothing()
    left = elapsed_seconds
    wait = seconds.get("wait", 0.0)
    # A standby has done its imports before it got its orders, so the phases may add up to more than has elapsed. The
    # phases up to the first step come last in this list, and are cut to what is left.
    wanted = [
        ("wait", wait),
        ("save", seconds.get(Phase.SAVE, 0.0)),
        ("step", max(0.0, seconds.get(Phase.STEP, 0.0) - wait)),
        ("other", seconds.get(Phase.EVALUATE, 0.0) + seconds.get(UNDER_WAY, 0.0)),
        ("compile", seconds.get(Phase.COMPILE, 0.0)),
        ("restore", seconds.get(Phase.RESTORE, 0.0)),
        ("start", sum(seconds.get(name, 0.0) for name in _START)),
    ]
    for category, amount in wanted:
        taken = min(left, amount)
        split[category] += taken
        left -= taken
    stepped = seconds.get(Phase.STEP, 0.0) > 0
    split["other" if stepped else "start"] += left
    if recovering:
        split["recovery"] = sum(split[name] for name in ("start", "compile", "restore"))
        split |= {"start": 0.0, "compile": 0.0, "restore": 0.0}
    return split


def added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Return the sum by category."""
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in GOODPUT_CATEGORIES}


def with_lost(split: Mapping[str, float], lost_seconds: float) -> dict[str, float]:
    """Return the same time, with so much of the steps' time counted as lost."""
    lost = min(lost_seconds, split["step"])
    return {**split, "step": split["step"] - lost, "lostSteps": split["lostSteps"] + lost}


class Ledger:
    """The wall time of a command so far. `now` is in seconds since the epoch, so that a successor can continue it."""

    def __init__(self, closed: Mapping[str, float], since: float) -> None:
        """Continue after `closed`, the time up to `since`."""
        # What follows is the start, or a recovery if an earlier leader, whose host was lost, has counted time already.
        self._closed, self._since = dict(closed), since
        self._between = "recovery" if any(closed.values()) else "start"
        self._running = False

    def began(self, now: float) -> None:
        """Take in that an attempt has its orders."""
        self._close(self._split(now, {}), now)
        self._running = True

    def ended(self, now: float, seconds: Mapping[str, float], *, well: bool) -> None:
        """Take in that the attempt is over, well or badly; `seconds` is rank 0's time by phase."""
        self._close(self._split(now, seconds), now)
        self._running, self._between = False, "other" if well else "recovery"

    def total(self, now: float, seconds: Mapping[str, float]) -> dict[str, float]:
        """Return the time up to `now`, with lost steps still counted as steps."""
        return added(self._closed, self._split(now, seconds))

    def _split(self, now: float, seconds: Mapping[str, float]) -> dict[str, float]:
        elapsed = max(0.0, now - self._since)
        if not self._running:
            return {self._between: elapsed}
        return attempt(elapsed, seconds, recovering=self._between == "recovery")

    def _close(self, split: Mapping[str, float], now: float) -> None:
        self._closed, self._since = added(self._closed, split), now
