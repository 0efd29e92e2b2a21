"""Which host is slow by itself, though all make their steps together.

Called by the leader with what all ranks last said. Pure. Two things of a host wait for no other: its devices at a piece
of work of their own (`shardwise.train.probe`), and its batches. A slow host is named, and never ended.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from shardwise.job.contract import Phase, Progress

MEASUREMENTS = 8
SLOW = 1.5


@dataclass(frozen=True, kw_only=True)
class Slow:
    """The slow host, and why in words for a person."""

    host: int
    words: str


class Stragglers:
    """The last few measurements of every rank."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._known: dict[int, deque[Progress]] = {}

    def observe(self, said: Sequence[Progress]) -> None:
        """Take in what all ranks say now; a measurement that is known already changes nothing."""
        for word in said:
            known = self._known.setdefault(word.rank, deque(maxlen=MEASUREMENTS))
            if word.measured and (not known or known[-1].measured != word.measured):
                known.append(word)

    def restarted(self) -> None:
        """New processes, perhaps on other hosts."""
        self._known.clear()

    def slowest(self) -> Slow | None:
        """The host that takes more than 1.5 times as long as the others' median; None before enough was measured.

        Of each host the best of its measurements counts: many things hold one up for a moment, nothing makes it short.
        """
        if len(self._known) < 2 or any(len(known) < MEASUREMENTS for known in self._known.values()):
            return None
        devices = {rank: min(word.own_seconds for word in known) for rank, known in self._known.items()}
        rank, others = _worst(devices)
        if devices[rank] > SLOW * others:
            return Slow(host=rank, words=f"its devices take {devices[rank] / others:.1f} times as long as the others'")
        waits = {rank: _waiting(known) for rank, known in self._known.items()}
        rank, others = _worst(waits)
        # Without its own waits, the step would be that much shorter.
        if (1 - others) > SLOW * (1 - waits[rank]):
            return Slow(host=rank, words=f"it waits for data {waits[rank]:.0%} of the time, the others {others:.0%}")
        return None


def _worst(values: dict[int, float]) -> tuple[int, float]:
    """The rank with the largest value, and the median of the others'."""
    rank = max(values, key=lambda one: values[one])
    return rank, median(value for other, value in values.items() if other != rank)


def _waiting(known: Sequence[Progress]) -> float:
    """The share of the time in steps that a rank has waited for its batches, from the first measurement to the last."""
    first, last = known[0].seconds, known[-1].seconds
    stepped = last[Phase.STEP] - first[Phase.STEP]
    return (last["wait"] - first["wait"]) / stepped if stepped > 0 else 0.0
