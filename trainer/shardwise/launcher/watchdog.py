"""Whether the trainers still get anywhere: stalled, hung, and which rank it is.

Called by the leader with what all ranks last said. Pure: it holds what was usual in this run, and is given the time.
No phase is exempt, but each has its own patience; and before the first step, where the progress record says little, a
process that uses its processors gets on.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from shardwise.job.contract import WORK_LIMIT_HANGS, Phase

HISTORY_STEPS = 20
_MAX_NAMED = 8
_FACTOR = 3.0
_MARGIN_SECONDS = 5.0
_FIRST_TIME_SECONDS = 60.0
_PHASES = tuple(Phase)
_HALTED_STATES = frozenset("TtZ")  # stopped, traced, dead
_STUCK_STATES = _HALTED_STATES | {"D"}  # waiting for a disk


@dataclass(frozen=True, kw_only=True)
class RankState:
    """One rank as last heard of.

    `idle_seconds` is how long its progress record has stood still, `resting_seconds` for how long its process has
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

    @property
    def still_seconds(self) -> float:
        """For how long it has got nowhere. From the first step on, only what it says counts."""
        if _PHASES.index(self.phase) < _PHASES.index(Phase.STEP):
            return min(self.idle_seconds, self.resting_seconds)
        return self.idle_seconds


@dataclass(frozen=True, kw_only=True)
class Stall:
    """Nobody gets anywhere. `rank` is the one it hangs on, None where the ranks cannot be told apart.

    `hung` says that the patience of the job is at its end too.
    """

    idle_seconds: float
    rank: int | None
    hung: bool
    words: str


class Usual:
    """How long things take in this run, learnt from what its ranks say."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._steps: dict[int, deque[float]] = {}
        self._last_step: dict[int, int] = {}
        self._entered: dict[int, tuple[Phase, float]] = {}
        self._longest: dict[Phase, float] = {}

    def observe(self, state: RankState, now: float) -> None:
        """Learn from one rank's word at `now` (monotonic seconds)."""
        before, since = self._entered.setdefault(state.rank, (state.phase, now))
        if before != state.phase:
            self._longest[before] = max(self._longest.get(before, 0.0), now - since)
            self._entered[state.rank] = (state.phase, now)
        if state.step_seconds > 0 and state.step != self._last_step.get(state.rank):
            self._steps.setdefault(state.rank, deque(maxlen=HISTORY_STEPS)).append(state.step_seconds)
            self._last_step[state.rank] = state.step

    def restarted(self) -> None:
        """New processes: what was under way is not to be compared with what comes, but steps are as long as before."""
        self._entered.clear()
        self._last_step.clear()

    @property
    def step_seconds(self) -> float | None:
        """The usual step, over all ranks; None before the first."""
        times = [seconds for history in self._steps.values() for seconds in history]
        return median(times) if times else None

    def patience_seconds(self, phase: Phase) -> float:
        """How long a rank may stand still in a phase before that is worth a word."""
        if phase == Phase.STEP and (usual := self.step_seconds) is not None:
            return _FACTOR * usual + _MARGIN_SECONDS
        # A phase may be entered more than once, and the first time says little of the second.
        return max(_FIRST_TIME_SECONDS, _FACTOR * self._longest.get(phase, 0.0) + _MARGIN_SECONDS)


def judge(states: Sequence[RankState], usual: Usual, hang_after_seconds: float) -> Stall | None:
    """Whether the ranks that still run are stalled; None while one of them gets anywhere."""
    if not states:
        return None
    silent = min(state.idle_seconds for state in states)
    still = min(state.still_seconds for state in states)
    # A process that does not run at all is not busy with its phase, however long that may take.
    halted = any(state.process_state in _HALTED_STATES for state in states)
    phases = {Phase.STEP} if halted else {state.phase for state in states}
    patience = max(usual.patience_seconds(phase) for phase in phases)  # once for each: it looks at all ranks' steps
    # One that works for ever without a word is as lost as one that does nothing.
    hung = still >= hang_after_seconds or silent >= WORK_LIMIT_HANGS * hang_after_seconds
    if not hung and still < patience:
        return None
    rank = told_apart(states)
    return Stall(idle_seconds=silent, rank=rank, hung=hung, words=_words(states, silent, rank))


def told_apart(states: Sequence[RankState]) -> int | None:
    """The rank that the others wait for: the only one that the kernel holds, or the only one that lags behind."""
    stuck = [state.rank for state in states if state.process_state in _STUCK_STATES]
    if len(stuck) == 1 or len(states) == 1:
        return stuck[0] if stuck else states[0].rank
    behind = sorted(states, key=_position)
    return behind[0].rank if _position(behind[0]) < _position(behind[1]) else None


def _position(state: RankState) -> tuple[int, int]:
    """How far a rank is. From the first step on, phases come and go, and the steps handed out say more."""
    stepping = _PHASES.index(Phase.STEP)
    order = min(_PHASES.index(state.phase), stepping)
    return order, state.dispatched if order == stepping else 0


def _words(states: Sequence[RankState], idle_seconds: float, rank: int | None) -> str:
    places: dict[str, list[int]] = {}
    for state in states:
        places.setdefault(f"in {state.phase} at step {state.step}", []).append(state.rank)
    where = ", ".join(f"{_ranks(ranks)} {place}" for place, ranks in places.items())
    who = "not told apart" if rank is None else f"rank {rank} holds it up"
    return f"no progress for {idle_seconds:.0f} s ({who}): {where}"


def _ranks(ranks: Sequence[int]) -> str:
    """All of a few, or how many there are: of a thousand no list is read, and it goes into the status."""
    if len(ranks) > _MAX_NAMED:
        return f"{len(ranks)} ranks from {ranks[0]} on"
    return " and ".join(f"rank {rank}" for rank in ranks)
