"""Whether the trainers still make progress: stalled or hung, and on which rank.

Pure: it works on the last reports of all ranks and on how long things usually take in this run; time is passed in. No
phase is exempt, but each may last a different time. Until a step is complete, when the progress record says little, a
process that uses its processors counts as making progress. How long a first step takes cannot be known: it never counts
as stalled, but can be hung.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from shardwise.protocol.contract import WORK_LIMIT_HANGS, Phase
from shardwise.protocol.report import Report

HISTORY_STEPS = 20
_MAX_LISTED = 8
_FACTOR = 3.0
_MARGIN_SECONDS = 5.0
_FIRST_TIME_SECONDS = 60.0
_PHASES = tuple(Phase)
_HALTED_STATES = frozenset("TtZ")  # stopped, traced, dead
_STUCK_STATES = _HALTED_STATES | {"D"}  # waiting for a disk


@dataclass(frozen=True, kw_only=True)
class RankState:
    """One rank, as of its last report.

    `idle_seconds` is for how long its progress record has not changed, `resting_seconds` for how long its process has
    hardly used a processor.
    """

    rank: int
    phase: Phase
    step: int
    dispatched: int
    step_seconds: float
    idle_seconds: float
    resting_seconds: float
    process_state: str

    @classmethod
    def of(cls, rank: int, report: Report, age_seconds: float) -> "RankState":
        """Return the state of a rank now, from a report that came `age_seconds` ago."""
        progress = report.progress
        return cls(
            rank=rank,
            phase=report.phase,
            step=progress.step if progress else 0,
            dispatched=progress.dispatched if progress else 0,
            step_seconds=progress.step_seconds if progress else 0.0,
            idle_seconds=report.age_seconds + age_seconds,
            resting_seconds=report.resting_seconds + age_seconds,
            process_state=report.process_state,
        )

    def still_seconds(self, *, knows_steps: bool) -> float:
        """Return how long it has made no progress.

        Once a step has completed, only the progress record counts during a step.
        """
        before_steps = _PHASES.index(self.phase) < _PHASES.index(Phase.STEP)
        if before_steps or (self.phase == Phase.STEP and not knows_steps):
            return min(self.idle_seconds, self.resting_seconds)
        return self.idle_seconds


@dataclass(frozen=True, kw_only=True)
class Stall:
    """No rank makes progress. `rank` is the one that the others wait for, None if that cannot be known.

    `hung` is set once the job's own limit, `hangAfter`, is reached too.
    """

    idle_seconds: float
    rank: int | None
    hung: bool
    message: str


class Baseline:
    """How long things take in this run, learnt from its ranks' reports."""

    def __init__(self) -> None:
        """Start without any observation."""
        self._steps: dict[int, deque[float]] = {}
        self._last_step: dict[int, int] = {}
        self._entered: dict[int, tuple[Phase, float]] = {}
        self._longest: dict[Phase, float] = {}

    def observe(self, state: RankState, now: float) -> None:
        """Learn from one rank's report at `now` (monotonic seconds)."""
        before, since = self._entered.setdefault(state.rank, (state.phase, now))
        if before != state.phase:
            self._longest[before] = max(self._longest.get(before, 0.0), now - since)
            self._entered[state.rank] = (state.phase, now)
        if state.step_seconds > 0 and state.step != self._last_step.get(state.rank):
            self._steps.setdefault(state.rank, deque(maxlen=HISTORY_STEPS)).append(state.step_seconds)
            self._last_step[state.rank] = state.step

    def restarted(self) -> None:
        """Forget what was under way, as new processes start. How long steps take stays known."""
        self._entered.clear()
        self._last_step.clear()

    @property
    def knows_steps(self) -> bool:
        """Whether a step of this run is complete."""
        return bool(self._steps)

    @property
    def step_seconds(self) -> float | None:
        """The median step over all ranks, in seconds; None before the first."""
        times = [seconds for history in self._steps.values() for seconds in history]
        return median(times) if times else None

    def stall_after_seconds(self, phase: Phase) -> float:
        """Return how long a rank may make no progress in a phase before it counts as stalled."""
        if phase == Phase.STEP:
            baseline = self.step_seconds
            return math.inf if baseline is None else _FACTOR * baseline + _MARGIN_SECONDS
        # A phase may be entered more than once, and how long it took the first time says little about the second.
        return max(_FIRST_TIME_SECONDS, _FACTOR * self._longest.get(phase, 0.0) + _MARGIN_SECONDS)


def judge(states: Sequence[RankState], baseline: Baseline, hang_after_seconds: float) -> Stall | None:
    """Return the stall of the ranks that still run, or None while one of them makes progress."""
    if not states:
        return None
    silent = min(state.idle_seconds for state in states)
    still = _still_seconds(states, baseline)
    # A process that the kernel has stopped does not work on its phase, so a long phase is no excuse for it.
    halted = any(state.process_state in _HALTED_STATES for state in states)
    phases = {Phase.STEP if baseline.knows_steps else Phase.START} if halted else {state.phase for state in states}
    stall_after = max(
        baseline.stall_after_seconds(phase) for phase in phases
    )  # once per phase: it takes the median of all ranks
    # A process that works without any report is as lost as one that does nothing, if only after a longer time.
    hung = still >= hang_after_seconds or silent >= WORK_LIMIT_HANGS * hang_after_seconds
    if not hung and still < stall_after:
        return None
    rank = blocking_rank(states)
    return Stall(idle_seconds=silent, rank=rank, hung=hung, message=_describe(states, silent, rank))


class Watch:
    """Judges the ranks of one attempt, look after look; `stall` is what the last one found."""

    def __init__(self) -> None:
        """Find nothing before the first look."""
        self.stall: Stall | None = None
        self._stalled_at = 0.0

    def judge(
        self, states: Sequence[RankState], baseline: Baseline, hang_after_seconds: float, now: float
    ) -> Stall | None:
        """Return what `judge` finds at `now` (monotonic seconds), or a stall of before that no progress has ended.

        A report that was longer on its way than the one before it makes its rank look younger, by that much.
        """
        stall = judge(states, baseline, hang_after_seconds)
        if stall is None and self.stall and states and _still_seconds(states, baseline) >= now - self._stalled_at:
            return self.stall
        if self.stall is None:
            self._stalled_at = now
        self.stall = stall
        return stall


def _still_seconds(states: Sequence[RankState], baseline: Baseline) -> float:
    return min(state.still_seconds(knows_steps=baseline.knows_steps) for state in states)


def blocking_rank(states: Sequence[RankState]) -> int | None:
    """Return the rank that the others wait for: the only one that the kernel holds, or the only one that lags behind.

    None if there is no such difference between the ranks.
    """
    stuck = [state.rank for state in states if state.process_state in _STUCK_STATES]
    if len(stuck) == 1 or len(states) == 1:
        return stuck[0] if stuck else states[0].rank
    behind = sorted(states, key=_position)
    return behind[0].rank if _position(behind[0]) < _position(behind[1]) else None


def _position(state: RankState) -> tuple[int, int]:
    """Return how far a rank is: by its phase before the first step, by the steps it has dispatched from then on."""
    stepping = _PHASES.index(Phase.STEP)
    order = min(_PHASES.index(state.phase), stepping)
    return order, state.dispatched if order == stepping else 0


def _describe(states: Sequence[RankState], idle_seconds: float, rank: int | None) -> str:
    places: dict[str, list[int]] = {}
    for state in states:
        places.setdefault(f"in {state.phase} at step {state.step}", []).append(state.rank)
    where = ", ".join(f"{_ranks(ranks)} {place}" for place, ranks in places.items())
    who = "not told apart" if rank is None else f"rank {rank} holds it up"
    return f"no progress for {idle_seconds:.0f} s ({who}): {where}"


def _ranks(ranks: Sequence[int]) -> str:
    """List a few ranks, or count many: no one reads a list of a thousand, and it goes into the status."""
    if len(ranks) > _MAX_LISTED:
        return f"{len(ranks)} ranks from {ranks[0]} on"
    return " and ".join(f"rank {rank}" for rank in ranks)
