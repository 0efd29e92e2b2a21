"""How long something still takes: one estimate for a run, wherever it is shown, and the words for what is left."""

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from statistics import median

RECENT_STEPS = 20
"""Speed is measured over so many steps: enough to even out a slow one, few enough to follow a change."""
_WORDS = re.compile(r"(?:(\d{1,20})h)?(\d{1,20})m(?:(\d{1,20})s)?")
_MB = 1_000_000


def clock(seconds: float, *, hours: bool = True) -> str:
    """Return a time left or gone by as 1:02:03; without `hours` one that is shorter than an hour as 2:03."""
    whole, minutes, rest = _split(seconds)
    return f"{whole}:{minutes:02}:{rest:02}" if hours or whole else f"{minutes}:{rest:02}"


def words(seconds: float) -> str:
    """Return a time left as a job's status has it: 1h5m, or 5m30s."""
    hours, minutes, rest = _split(seconds)
    return f"{hours}h{minutes}m" if hours else f"{minutes}m{rest}s"


def seconds_in(written: str) -> float | None:
    """Return the seconds of a time that `words` has written; None for another text."""
    found = _WORDS.fullmatch(written)
    if found is None:
        return None
    hours, minutes, rest = (int(part or 0) for part in found.groups())
    return 3600.0 * hours + 60.0 * minutes + rest


def megabytes(done: float, of: float, a_second: float | None) -> str:
    """Return how many bytes of all are done and, at a speed that is known, when the rest is."""
    text = f"{done / _MB:,.1f} of {of / _MB:,.1f} MB"
    return f"{text}, {a_second / _MB:,.1f} MB/s, {clock((of - done) / a_second)} left" if a_second else text


def eta_seconds(steps_left: float | None, recent_seconds: Collection[float]) -> float | None:
    """Return the time that so many more steps take at the median of the last steps' seconds; None if not known.

    `recent_seconds` holds the times of the last `RECENT_STEPS` steps, or of as many as are known.
    """
    if steps_left is None or not recent_seconds:
        return None
    return median(recent_seconds) * steps_left


def of_each_step(steps: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Return what one step took, where some of them are reported, each with the seconds of all since the one before.

    The first of them is taken to be of as many steps as the next.
    """
    counts = [max(1, after - before) for before, after in pairwise(steps)]
    return [took / count for took, count in zip(seconds, counts[:1] + counts or [1], strict=False)]


def _split(seconds: float) -> tuple[int, int, int]:
    minutes, rest = divmod(int(seconds), 60)
    return (*divmod(minutes, 60), rest)
