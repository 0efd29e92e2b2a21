"""Which host is slow by itself, although all hosts make their steps together.

Pure. Two things of a host wait for no other host: its devices at a piece of work of their own
(`shardwise.train.probe`), and its batches. A slow host is reported, and never ended.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from shardwise.protocol.contract import Phase, Progress

MEASUREMENTS = 8
SLOW = 1.5


@dataclass(frozen=True, kw_only=True)
class Slow:
    """The slow host, and a message for a person with the reason."""

    host: int
    message: str


class Stragglers:
    """The last few measurements of every rank."""

    def __init__(self) -> None:
        """Start without any measurement."""
        self._known: dict[int, deque[Progress]] = {}

    def observe(self, records: Sequence[Progress]) -> None:
        """Take in the progress records of all ranks; a measurement that is known already changes nothing."""
        for progress in records:
            known = self._known.setdefault(progress.rank, deque(maxlen=MEASUREMENTS))
            if progress.measured and (not known or known[-1].measured != progress.measured):
                known.append(progress)

    def restarted(self) -> None:
        """Forget everything, as new processes start, perhaps on other hosts."""
        self._known.clear()

    def slowest(self) -> Slow | None:
        """Return the host that takes more than 1.5 times as long as the others' median; None without enough data."""
        if len(self._known) < 2 or any(len(known) < MEASUREMENTS for known in self._known.values()):
            return None
        # The shortest measurement of each host counts: many things make one too long, and nothing too short.
        devices = {rank: min(progress.own_seconds for progress in known) for rank, known in self._known.items()}
        rank, others = _worst(devices)
        if devices[rank] > SLOW * others:
            return Slow(
                host=rank, message=f"its devices take {devices[rank] / others:.1f} times as long as the others'"
            )
        waits = {rank: _waiting(known) for rank, known in self._known.items()}
        rank, others = _worst(waits)
        # Without its waits this host's steps would be that much shorter, and without theirs the others'. What is left
        # of the steps is compared, because the waits of the others can be near 0.
        if (1 - others) > SLOW * (1 - waits[rank]):
            return Slow(host=rank, message=f"it waits for data {waits[rank]:.0%} of the time, the others {others:.0%}")
        return None


def _worst(values: dict[int, float]) -> tuple[int, float]:
    """Return the rank with the largest value, and the median of the others' values."""
    rank = max(values, key=lambda one: values[one])
    return rank, median(value for other, value in values.items() if other != rank)


def _waiting(known: Sequence[Progress]) -> float:
    """Return the share of its steps' time, from the first measurement to the last, that a rank waited for data."""
    first, last = known[0].seconds, known[-1].seconds
    stepped = last[Phase.STEP] - first[Phase.STEP]
    return (last["wait"] - first["wait"]) / stepped if stepped > 0 else 0.0
