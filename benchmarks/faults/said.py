"""What a run in pods says, as the outcome of a fault is told of it. Called by `pods.py` and `peers.py`."""

from collections import Counter

from benchmarks.faults.watch import Told, Watch

from shardwise.protocol.contract import METRICS

_STARTS = ("started", "restored")


class Said(Watch):
    """What a run says, as the outcome of a fault is told of it."""

    @property
    def steps(self) -> list[int]:
        """Every step that was taken, in order."""
        return [told.record["step"] for told in self._metrics() if told.event is None]

    @property
    def steps_lost(self) -> int:
        """How many were taken more than once."""
        return sum(count - 1 for count in Counter(self.steps).values())

    def event(self, name: str) -> bool:
        """Whether there was one of this kind."""
        return any(told.event == name for told in [*self.told])

    @property
    def ends(self) -> list[str]:
        """Why each attempt ended badly."""
        return [told.record["message"] for told in [*self.told] if told.event == "ended"]

    def unusual(self, since: float) -> float | None:
        """When it first said something since then that no undisturbed run says."""
        return next((told.at for told in [*self.told] if told.at >= since and told.unusual), None)

    def next_step(self, since: float, *, begun_anew: bool = False) -> float | None:
        """When the next step was taken: after a restart, if there was one, or in no case before one."""
        later = [told for told in self._metrics() if told.at > since]
        starts = [number for number, told in enumerate(later) if told.event in _STARTS]
        if begun_anew and not starts:
            return None  # the trainers of before go on for a moment
        steps = (told.at for told in later[starts[0] if starts else 0 :] if told.event is None)
        return next(steps, None)

    def _metrics(self) -> list[Told]:
        return [told for told in [*self.told] if told.file == METRICS]
