"""Where a run's wall time went, in categories that add up to it.

Called by the leader: time between incarnations is the start's or a recovery's, the time of an incarnation is divided by
what rank 0 says of its phases.

    step        training: steps that counted
    lostSteps   training that a later incarnation did again, because no checkpoint held it
    save        training stood still for a save
    wait        training stood still for data
    start, compile, restore     the way to the first step of the command's first incarnation
    recovery    from a bad end to the first step after it: all of that way, and waiting for hosts
    other       the rest: evaluations, the last save, the end
"""

from collections.abc import Mapping

from shardwise.job.contract import Phase

CATEGORIES = ("start", "compile", "restore", "step", "lostSteps", "save", "wait", "recovery", "other")
_START = ("interpreter", "imports", Phase.START, Phase.JOIN, Phase.DATA, Phase.INIT)


def nothing() -> dict[str, float]:
    """Every category at zero."""
    return dict.fromkeys(CATEGORIES, 0.0)


def incarnation(elapsed_seconds: float, seconds: Mapping[str, float], *, recovering: bool) -> dict[str, float]:
    """The time of one incarnation by category; the sum is `elapsed_seconds`.

    Args:
        elapsed_seconds: since rank 0 got its orders.
        seconds: rank 0's time by phase. Its steps include the waits for data. What a standby did before it got its
            orders is counted too, so the way to the first step is cut to what is left.
        recovering: it follows a bad end.

    """
    split = nothing()
    left = elapsed_seconds
    wait = seconds.get("wait", 0.0)
    wanted = [
        ("wait", wait),
        ("save", seconds.get(Phase.SAVE, 0.0)),
        ("step", max(0.0, seconds.get(Phase.STEP, 0.0) - wait)),
        ("other", seconds.get(Phase.EVALUATE, 0.0)),
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
    """The sum by category."""
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in CATEGORIES}


def with_lost(split: Mapping[str, float], lost_seconds: float) -> dict[str, float]:
    """The same time, with so much of the steps' counted as lost."""
    lost = min(lost_seconds, split["step"])
    return {**split, "step": split["step"] - lost, "lostSteps": split["lostSteps"] + lost}


class Ledger:
    """The wall time of a command so far. `now` is in seconds since the epoch, for a successor goes on with it."""

    def __init__(self, closed: Mapping[str, float], since: float) -> None:
        """`closed` is the time up to `since`; what follows is the start's, or, after a lost host 0, a recovery's."""
        self._closed, self._since = dict(closed), since
        self._between = "recovery" if any(closed.values()) else "start"
        self._running = False

    def began(self, now: float) -> None:
        """An incarnation has its orders."""
        self._close(self._split(now, {}), now)
        self._running = True

    def ended(self, now: float, seconds: Mapping[str, float], *, well: bool) -> None:
        """It is over, well or badly; `seconds` is rank 0's time by phase."""
        self._close(self._split(now, seconds), now)
        self._running, self._between = False, "other" if well else "recovery"

    def total(self, now: float, seconds: Mapping[str, float]) -> dict[str, float]:
        """The time up to `now`, lost steps not yet told apart."""
        return added(self._closed, self._split(now, seconds))

    def _split(self, now: float, seconds: Mapping[str, float]) -> dict[str, float]:
        elapsed = max(0.0, now - self._since)
        if not self._running:
            return {self._between: elapsed}
        return incarnation(elapsed, seconds, recovering=self._between == "recovery")

    def _close(self, split: Mapping[str, float], now: float) -> None:
        self._closed, self._since = added(self._closed, split), now
