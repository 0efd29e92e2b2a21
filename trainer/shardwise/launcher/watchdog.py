"""Whether the trainers still get anywhere: stalled, hung, and which rank it is; and which rank is slow.

Called by the leader with what all ranks last said. Pure: it holds what was usual in this run, and is given the time.
No phase is exempt, but each has its own patience.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from shardwise.job.contract import Phase

HISTORY_STEPS = 20
SLOW = 1.5
_FACTOR = 3.0
_MARGIN_SECONDS = 5.0
_FIRST_TIME_SECONDS = 60.0
_PHASES = tuple(Phase)
_HALTED_STATES = frozenset("TtZ")  # stopped, traced, dead
_STUCK_STATES = _HALTED_STATES | {"D"}  # waiting for a disk


@dataclass(frozen=True, kw_only=True)
class RankState:
    """One rank as last heard of. `idle_seconds` is how long its progress record has stood still."""

    rank: int
    phase: Phase
    step: int
    dispatched: int
    step_seconds: float
    idle_seconds: float
    process_state: str


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
        if phase == Phase.STEP and self.step_seconds is not None:
            return _FACTOR * self.step_seconds + _MARGIN_SECONDS
        # A phase may be entered more than once, and the first time says little of the second.
        return max(_FIRST_TIME_SECONDS, _FACTOR * self._longest.get(phase, 0.0) + _MARGIN_SECONDS)

    def slowest(self) -> int | None:
        """The rank whose usual step takes more than 1.5 times the others', once all have made enough of them."""
        usual = {rank: median(history) for rank, history in self._steps.items() if len(history) == HISTORY_STEPS}
        if len(usual) < 2 or len(usual) < len(self._steps):
            return None
        rank = max(usual, key=lambda one: usual[one])
        others = median(seconds for other, seconds in usual.items() if other != rank)
        return rank if usual[rank] > SLOW * others else None


def judge(states: Sequence[RankState], usual: Usual, hang_after_seconds: float) -> Stall | None:
    """Whether the ranks that still run are stalled; None while one of them gets anywhere."""
    if not states:
        return None
    idle = min(state.idle_seconds for state in states)
    # A process that does not run at all is not busy with its phase, however long that may take.
    halted = any(state.process_state in _HALTED_STATES for state in states)
    patience = max(usual.patience_seconds(Phase.STEP if halted else state.phase) for state in states)
    hung = idle >= hang_after_seconds
    if not hung and idle < patience:
        return None
    rank = told_apart(states)
    return Stall(idle_seconds=idle, rank=rank, hung=hung, words=_words(states, idle, rank))


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
    where = ", ".join(f"rank {state.rank} in {state.phase} at step {state.step}" for state in states)
    who = "not told apart" if rank is None else f"rank {rank} holds it up"
    return f"no progress for {idle_seconds:.0f} s ({who}): {where}"
