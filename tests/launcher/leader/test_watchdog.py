"""When the ranks make no progress, and which one holds them up."""

import statistics
from dataclasses import replace

import pytest

from shardwise.launcher.leader import watchdog
from shardwise.launcher.leader.watchdog import Baseline, RankState, Watch, blocking_rank, judge
from shardwise.protocol.contract import WORK_LIMIT_HANGS, Phase, Progress
from shardwise.protocol.report import Report

FINE = RankState(
    rank=0,
    phase=Phase.STEP,
    step=5,
    dispatched=6,
    step_seconds=2.0,
    idle_seconds=0.0,
    resting_seconds=1000.0,
    process_state="S",
)
HANG_AFTER = 100.0


def two(idle: float, **second: object) -> list[RankState]:
    """Return two ranks without progress for `idle` seconds, the second one changed."""
    first = replace(FINE, idle_seconds=idle)
    return [first, replace(first, rank=1, **second)]  # type: ignore[arg-type]


def after_steps(seconds: float) -> Baseline:
    """Return the baseline after some steps of so many seconds."""
    baseline = Baseline()
    for step in range(1, 4):
        baseline.observe(replace(FINE, step=step, step_seconds=seconds), now=float(step))
    return baseline


def test_what_a_report_says_of_a_rank() -> None:
    """Its times go on since it came: a host that reports no more makes no progress either."""
    progress = Progress(
        attempt=0,
        rank=1,
        phase=Phase.STEP,
        step=5,
        dispatched=6,
        step_seconds=2.0,
        monotonic_seconds=0.0,
        pid=7,
        seconds={},
    )
    report = Report(
        version=1,
        host=1,
        agent_id="a",
        agent_pid=3,
        trainer_pid=7,
        attempt=0,
        progress=progress,
        age_seconds=4.0,
        resting_seconds=990.0,
        process_state="S",
        exit=None,
        standby=False,
        stop_asked=False,
    )

    assert RankState.of(1, report, 10.0) == replace(FINE, rank=1, idle_seconds=14.0)
    nothing = RankState.of(1, report.model_copy(update={"progress": None}), 10.0)
    assert (nothing.phase, nothing.step, nothing.dispatched, nothing.step_seconds) == (Phase.START, 0, 0, 0.0)


def test_what_a_run_teaches_of_its_phases() -> None:
    """Of each how long it took, from when it was entered; what new processes interrupt was never over."""
    baseline = Baseline()
    for phase, now in ((Phase.START, 0.0), (Phase.COMPILE, 10.0), (Phase.STEP, 110.0), (Phase.EVALUATE, 1000.0)):
        baseline.observe(replace(FINE, phase=phase, step_seconds=0.0), now)
    baseline.restarted()
    baseline.observe(replace(FINE, phase=Phase.START, step_seconds=0.0), 5000.0)

    assert baseline.stall_after_seconds(Phase.START) == baseline.stall_after_seconds(Phase.EVALUATE) == 60.0
    assert baseline.stall_after_seconds(Phase.COMPILE) == 305.0


def test_what_a_run_teaches_of_its_steps() -> None:
    """Each counts once, however often it is reported, and none that is not complete; new processes forget none."""
    baseline = Baseline()
    baseline.observe(replace(FINE, step=0, step_seconds=0.0), 0.0)
    assert not baseline.knows_steps
    for step, seconds, reports in ((1, 9.0, 5), (2, 1.0, 1), (3, 1.0, 1)):
        for _ in range(reports):
            baseline.observe(replace(FINE, step=step, step_seconds=seconds), float(step))
    baseline.restarted()

    assert baseline.step_seconds == 1.0


@pytest.mark.parametrize(
    ("idle", "stalled", "hung"), [(10.9, False, False), (11.0, True, False), (99.0, True, False), (100.0, True, True)]
)
def test_a_step(idle: float, stalled: bool, hung: bool) -> None:  # noqa: FBT001  columns of a table
    """Three usual steps and five seconds without progress are a stall; the job's limit makes it a hang."""
    stall = judge(two(idle), after_steps(2.0), HANG_AFTER)

    assert (stall is not None) == stalled
    assert (stall is not None and stall.hung) == hung


def test_only_progress_ends_a_stall() -> None:
    """A report that was longer on its way than the one before makes a rank look younger, which is none."""
    watch, baseline = Watch(), after_steps(2.0)
    assert watch.judge(two(10.9), baseline, HANG_AFTER, now=50.0) is None
    stall = watch.judge(two(11.0), baseline, HANG_AFTER, now=50.1)
    assert stall
    assert watch.judge(two(10.8), baseline, HANG_AFTER, now=50.2) == watch.stall == stall
    assert watch.judge(two(2.0), baseline, HANG_AFTER, now=52.0) == stall
    assert watch.judge(two(1.8), baseline, HANG_AFTER, now=52.0) is None
    assert watch.stall is None
    assert watch.judge(two(10.9), baseline, HANG_AFTER, now=61.1) is None
    assert watch.judge([], baseline, HANG_AFTER, now=70.0) is None


def test_progress_of_one_is_enough() -> None:
    """While one rank makes progress, there is no stall."""
    assert judge(two(50.0, idle_seconds=1.0), after_steps(2.0), HANG_AFTER) is None
    assert judge(two(WORK_LIMIT_HANGS * HANG_AFTER, idle_seconds=1.0), after_steps(2.0), HANG_AFTER) is None


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase != Phase.STEP])
def test_no_phase_is_exempt(phase: Phase) -> None:
    """A phase has a minute or, if that is more, three times the longest one seen and five seconds."""
    baseline = Baseline()
    stuck = replace(FINE, phase=phase, step_seconds=0.0)
    assert judge([replace(stuck, idle_seconds=59.0)], baseline, HANG_AFTER) is None
    assert judge([replace(stuck, idle_seconds=60.0)], baseline, HANG_AFTER) is not None

    baseline.observe(stuck, now=0.0)
    baseline.observe(stuck, now=15.0)
    baseline.observe(FINE, now=20.0)
    assert judge([replace(stuck, idle_seconds=64.0)], baseline, HANG_AFTER) is None
    assert judge([replace(stuck, idle_seconds=65.0)], baseline, HANG_AFTER) is not None


@pytest.mark.parametrize("phase", [Phase.START, Phase.DATA, Phase.RESTORE, Phase.COMPILE])
def test_work_before_the_first_step_is_progress(phase: Phase) -> None:
    """A rank that uses its processors is not stalled although it reports nothing, but not for ever."""
    longest = WORK_LIMIT_HANGS * HANG_AFTER
    working = replace(FINE, phase=phase, idle_seconds=longest - 1, resting_seconds=1.0)
    waiting = replace(working, rank=1, resting_seconds=longest)

    assert judge([working, waiting], Baseline(), HANG_AFTER) is None
    stall = judge([replace(rank, idle_seconds=longest) for rank in (working, waiting)], Baseline(), HANG_AFTER)
    assert stall is not None
    assert stall.hung


def test_a_long_first_step_is_not_stalled() -> None:
    """Nobody knows yet how long a step takes: a rank that works is fine, and one that rests can but hang."""
    long = WORK_LIMIT_HANGS * HANG_AFTER - 1
    working = replace(FINE, step=0, step_seconds=0.0, idle_seconds=long, resting_seconds=1.0)
    assert judge([working], Baseline(), HANG_AFTER) is None
    resting = replace(working, idle_seconds=HANG_AFTER - 1, resting_seconds=HANG_AFTER - 1)
    assert judge([resting], Baseline(), HANG_AFTER) is None
    hung = judge([replace(resting, idle_seconds=HANG_AFTER, resting_seconds=HANG_AFTER)], Baseline(), HANG_AFTER)
    assert hung is not None
    assert hung.hung
    # A rank that was stopped does not work on it, and a run that goes on knows its steps.
    assert judge([replace(resting, process_state="T")], Baseline(), HANG_AFTER) is not None
    assert judge([resting], after_steps(2.0), HANG_AFTER) is not None


def test_a_halted_compilation_is_found() -> None:
    """A process that was stopped uses no processor, whatever its phase is."""
    compiling = replace(FINE, phase=Phase.COMPILE, idle_seconds=250.0, resting_seconds=99.0, process_state="T")
    stall = judge([compiling], after_steps(2.0), HANG_AFTER)
    assert stall is not None
    assert not stall.hung

    stall = judge([replace(compiling, resting_seconds=100.0)], after_steps(2.0), HANG_AFTER)
    assert stall is not None
    assert stall.hung


@pytest.mark.parametrize("phase", [Phase.STEP, Phase.SAVE, Phase.EVALUATE])
def test_work_is_no_progress_once_there_are_steps(phase: Phase) -> None:
    """From the first step on a rank reports how far it is; one that only uses its processors has hung."""
    spinning = replace(FINE, phase=phase, idle_seconds=HANG_AFTER, resting_seconds=0.0)
    stall = judge([spinning], after_steps(2.0), HANG_AFTER)
    assert stall is not None
    assert stall.hung


def test_a_stopped_process_has_the_patience_of_a_step() -> None:
    """A rank that was stopped inside a long phase is reported as soon as one that was stopped in a step."""
    ranks = two(11.0)
    saving = [replace(ranks[0], phase=Phase.SAVE), ranks[1]]
    halted = [replace(saving[0], process_state="T"), ranks[1]]

    assert judge(saving, after_steps(2.0), HANG_AFTER) is None
    stall = judge(halted, after_steps(2.0), HANG_AFTER)
    assert stall is not None
    assert stall.rank == ranks[0].rank


def test_hang_without_a_stall_before() -> None:
    """A job whose limit is shorter than the time to a stall has its hang all the same."""
    stall = judge(two(3.0), Baseline(), 2.0)
    assert stall is not None
    assert stall.hung


@pytest.mark.parametrize(
    ("second", "rank"),
    [
        ({"process_state": "T"}, 1),
        ({"process_state": "D"}, 1),
        ({"dispatched": 5}, 1),
        ({"dispatched": 7}, 0),
        ({"phase": Phase.COMPILE, "dispatched": 0}, 1),
        ({"phase": Phase.SAVE}, None),
        ({}, None),
    ],
)
def test_blocking_rank(second: dict[str, object], rank: int | None) -> None:
    """It is the one that the kernel holds, or the one that is behind; without a difference it is none."""
    assert blocking_rank(two(50.0, **second)) == rank


def test_of_several_stopped_ranks_none_is_blamed() -> None:
    """Two ranks that are stopped cannot both be the one that the others wait for."""
    states = [replace(state, process_state="T") for state in two(50.0)]
    assert blocking_rank(states) is None


def test_many_ranks_are_judged_at_once_and_described_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The median step is computed once for all of them, and a thousand ranks in one place are one phrase."""
    ranks = [replace(FINE, rank=rank, idle_seconds=70.0) for rank in range(1024)]
    ranks[7] = replace(ranks[7], phase=Phase.SAVE, dispatched=5)
    medians: list[float] = []

    def counted(times: list[float]) -> float:
        medians.append(statistics.median(times))
        return medians[-1]

    monkeypatch.setattr(watchdog, "median", counted)
    stall = judge(ranks, after_steps(2.0), HANG_AFTER)
    assert stall is not None
    assert stall.message == (
        "no progress for 70 s (rank 7 holds it up): 1023 ranks from 0 on in step at step 5, rank 7 in save at step 5"
    )
    assert medians == [2.0]
