"""What a run says while it is disturbed, and how long its way back takes by that.

The clock is this process's: a record counts from when it can be read. Called by `ground.py`.
"""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.protocol.contract import LOGS, METRICS, Phase

_LOOK_SECONDS = 0.005
# Two ranks that share a busy machine's processors may differ without a fault, so `slow` is usual, too.
_USUAL = frozenset({"session", "attempt", "running", "hosts", "done", "save", "left", "started", "restored", "slow"})
_USUAL_METRICS = _USUAL | {"evaluated", "saved", "stopped", "complete", None}
_WAY_BACK = (Phase.JOIN, Phase.DATA, Phase.RESTORE, Phase.INIT, Phase.COMPILE)


@dataclass(frozen=True, kw_only=True)
class Told:
    """A record of the launcher or of the trainers, and when it could be read, in seconds since the epoch."""

    at: float
    file: str
    record: Mapping[str, Any]

    @property
    def event(self) -> str | None:
        """Its kind; None for a step."""
        return self.record.get("event")

    @property
    def unusual(self) -> bool:
        """Whether a run without a fault would not say it."""
        return self.event not in (_USUAL_METRICS if self.file == METRICS else _USUAL)


class Watch:
    """Reads what a run says as it says it."""

    def __init__(self, directory: Path) -> None:
        """Begin with what is said from now on."""
        self.told: list[Told] = []
        self._files = {METRICS: directory / METRICS, "launcher.jsonl": directory / LOGS / "launcher.jsonl"}
        self._read = {name: path.stat().st_size if path.exists() else 0 for name, path in self._files.items()}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Read the rest."""
        self._over.set()
        self._thread.join()
        self._look()

    def _follow(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        for name, path in self._files.items():
            try:
                with path.open("rb") as file:
                    file.seek(self._read[name])
                    text = file.read()
            except OSError:  # not there yet, or on a volume that fails at the moment
                continue
            whole = text[: text.rfind(b"\n") + 1]
            self._read[name] += len(whole)
            now = time.time()
            self.told += [Told(at=now, file=name, record=json.loads(line)) for line in whole.splitlines()]


def way_back(after: Sequence[Told], put_at: float, summary: Mapping[str, Any]) -> dict[str, float]:
    """Seconds from a fault to the next step: until it was noticed, until new trainers had orders, as rank 0 says.

    What is left is the first step's: with the imports of a process that did not stand by, and all that nobody counts.
    """
    ended = next((told for told in after if told.event == "ended"), None)
    attempt, step = _next_step(after, begun_anew=ended is not None)
    if ended is None or step is None:
        return {"step": step.at - put_at} if step else {}
    orders = next(told for told in after if told.event == "attempt" and told.record["attempt"] == attempt)
    way = {"noticed": ended.at - put_at, "restart": orders.at - ended.at}
    if summary["attempts"] == attempt + 1:
        way |= {phase.value: summary.get("phases", {}).get(phase, 0.0) for phase in _WAY_BACK}
    way = {name: seconds for name, seconds in way.items() if seconds >= 0.05}
    return {**way, "first step": step.at - put_at - sum(way.values())}


def _next_step(after: Sequence[Told], *, begun_anew: bool) -> tuple[int, Told | None]:
    """The first step that is told, where it is `begun_anew` after a start of the trainers; and their attempt."""
    attempt = -1
    for told in after:
        if told.file == METRICS and told.event in ("started", "restored"):
            attempt = told.record["attempt"]
        elif told.file == METRICS and told.event is None and (attempt >= 0 or not begun_anew):
            return attempt, told
    return attempt, None
