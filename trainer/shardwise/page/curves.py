"""metrics.jsonl as a page needs it: numbers over steps in little memory, thinned to what a screen can show."""

import json
import math
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import ValidationError

from shardwise.page.document import Evaluation, Series
from shardwise.protocol.eta import RECENT_STEPS, of_each_step
from shardwise.protocol.evaluated import HELD_OUT as HELD_OUT_SET
from shardwise.protocol.evaluated import answered, by_name, results
from shardwise.protocol.shared_files import line_of_run

NAMES = ("loss", "tokensPerSecond", "mfu", "stepSeconds", "gradNorm", "busiestExpert", "idleExperts")
HELD_OUT, HELD_OUT_REWARD = "heldOutLoss", "heldOutReward"
SET_LOSS, SET_ANSWERED, SET_REWARD = "/loss", "/accuracy", "/reward"
"""End the names of curves of an evaluation set: losses, the share of its questions answered right, mean rewards."""
MOST_POINTS, MOST_EVALUATIONS, MOST_OTHERS = 2000, 1000, 8
_DIGITS = 6


class Curve:
    """One number over the steps, ascending; `gaps` are the steps at which it was none."""

    def __init__(self) -> None:
        self.steps, self.values, self.gaps = array("q"), array("d"), array("q")

    def add(self, step: int, value: float) -> None:
        """Append a step; those from it on, which an earlier attempt has written, no longer count."""
        self.cut(step)
        self.steps.append(step)
        self.values.append(value)

    def miss(self, step: int) -> None:
        """Append a step at which it was no number, and that has no point."""
        self.cut(step)
        self.gaps.append(step)

    def cut(self, step: int) -> None:
        """Forget this step and those after it."""
        if self.steps and self.steps[-1] >= step:
            keep = bisect_left(self.steps, step)
            del self.steps[keep:], self.values[keep:]
        del self.gaps[bisect_left(self.gaps, step) :]

    @property
    def last(self) -> float | None:
        """Return the newest value: NaN if it was no number, None before the first."""
        if self.gaps and (not self.steps or self.gaps[-1] > self.steps[-1]):
            return math.nan
        return self.values[-1] if self.values else None

    def recent(self) -> list[float]:
        """Return the last values."""
        return list(self.values[-RECENT_STEPS:])


class Metrics:
    """metrics.jsonl so far: a curve by name, the last evaluations, and every other event in the order of the file.

    `of_program` is whether an own program has written it. `others` names the first numbers that it reports beside those
    that a trainer has too.
    """

    def __init__(self, path: Path) -> None:
        """Read the file; one that does not exist yet has no steps."""
        self._path = path
        self._begin()
        self.read()

    def _begin(self) -> None:
        """Know nothing of the file."""
        self._offset = 0
        self.curves = {name: Curve() for name in (*NAMES, HELD_OUT)}
        self.events: list[dict[str, Any]] = []
        self.evaluations = deque[Evaluation](maxlen=MOST_EVALUATIONS)
        self.last_step = 0
        self.of_program = False
        self.others: list[str] = []

    def read(self) -> None:
        """Take in what has been appended since; the whole file if it is shorter than before, and so another one."""
        with suppress(FileNotFoundError):
            if self._path.stat().st_size < self._offset:
                self._begin()
        for line in _whole_lines(self._path, self._offset):
            self._offset += len(line)
            if (record := line_of_run(_object(line))) is not None:
                self._take(record)

    def _take(self, record: Mapping[str, Any]) -> None:
        event, step = record.get("event"), record["step"]
        if event is None:
            self.last_step = step
            for name in (*NAMES, *self._also(record)):
                self._add(name, step, record)
        elif event == "evaluated":
            with suppress(ValidationError):  # an older release has not noted when, and a program may note anything
                self.evaluations.append(Evaluation.model_validate(record))
            losses = by_name(record)
            for name in losses:
                if name in (HELD_OUT, HELD_OUT_REWARD) or name.endswith((SET_LOSS, SET_REWARD)):
                    self._add(name, step, losses)
            for name in answered(results(record)):
                self._add(f"{name}{SET_ANSWERED}", step, losses)
        else:
            if event in ("started", "restored"):
                self.last_step, self.of_program = step, record.get("program", False)
                for curve in self.curves.values():
                    curve.cut(step + 1)
            self.events.append(dict(record))

    def _also(self, record: Mapping[str, Any]) -> list[str]:
        """Return what else of a step is a curve: nothing of a trainer's."""
        if not self.of_program:
            return []
        new = [name for name in record if name != "step" and name not in self.curves]
        self.others += new[: MOST_OTHERS - len(self.others)]
        return [HELD_OUT, *self.others]

    def _add(self, name: str, step: int, record: Mapping[str, Any]) -> None:
        curve, value = self.curves.setdefault(name, Curve()), record.get(name)
        if isinstance(value, int | float):
            curve.add(step, value)
        elif name in record:  # what JSON cannot hold is null in the file
            curve.miss(step)
        else:
            curve.cut(step)

    @property
    def recent_steps(self) -> list[float]:
        """Return what the last steps took."""
        curve = self.curves["stepSeconds"]
        return of_each_step(curve.steps[-RECENT_STEPS:], curve.recent())

    def recent(self, name: str) -> float | None:
        """Return the median of the last steps; None before the first."""
        values = self.curves[name].recent()
        return float(median(values)) if values else None

    def last(self, name: str) -> float | None:
        """Return the newest value: NaN if it was no number, None if there is none."""
        return self.curves[name].last

    def set_losses(self) -> dict[str, float]:
        """Return the last loss on each evaluation set, by its name: NaN if it was no number."""
        return self._last_of_sets(SET_LOSS)

    def set_answered(self) -> dict[str, float]:
        """Return the last share of the questions of each set of them that are answered right."""
        return self._last_of_sets(SET_ANSWERED)

    def set_rewards(self) -> dict[str, float]:
        """Return the last mean reward on each set of prompts; that of the held-out ones by a name that no set has."""
        held_out = self.last(HELD_OUT_REWARD) if HELD_OUT_REWARD in self.curves else None
        return ({} if held_out is None else {HELD_OUT_SET: held_out}) | self._last_of_sets(SET_REWARD)

    def _last_of_sets(self, end: str) -> dict[str, float]:
        names = [name for name in self.curves if name.endswith(end) and name not in self.others]
        values = {name.removesuffix(end): self.last(name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def series(self) -> list[Series]:
        """Return each curve that has a point, thinned."""
        return [thinned(name, curve) for name, curve in self.curves.items() if curve.steps]


def thinned(name: str, curve: Curve, most: int = MOST_POINTS) -> Series:
    """Return at most `most` points: of each stretch of steps the lowest and the highest, so that no spike is lost."""
    count = len(curve.steps)
    chosen = range(count) if count <= most else _extremes(curve.values, most // 2 - 1)
    return Series(
        name=name,
        steps=[curve.steps[at] for at in chosen],
        values=[_rounded(curve.values[at]) for at in chosen],
        count=count,
    )


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file, one a line; what a kill has cut short is passed over."""
    yield from (record for line in _whole_lines(path, 0) if (record := _object(line)) is not None)


def _whole_lines(path: Path, offset: int) -> Iterator[bytes]:
    """Yield every line from this byte on that has its end."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        yield from (line for line in file if line.endswith(b"\n"))


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _extremes(values: "array[float]", buckets: int) -> list[int]:
    """Return where each of so many stretches is lowest and where it is highest, with the first and the last of all."""
    count, chosen = len(values), {0, len(values) - 1}
    for bucket in range(buckets):
        begin = bucket * count // buckets
        stretch = values[begin : (bucket + 1) * count // buckets]
        chosen |= {begin + stretch.index(min(stretch)), begin + stretch.index(max(stretch))}
    return sorted(chosen)


def _rounded(value: float) -> float:
    return value if value == 0.0 or not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")
