"""Rows of trainers, agents and hosts that end, fail, stand still or are late."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks.faults.ground import ground, once
from benchmarks.faults.outcome import Outcome, Row
from benchmarks.faults.plan import AFTER_COMMIT, BEFORE_COMMIT, Does, Fault
from tests.cli.running import EVALUATED

from shardwise.job.contract import Cause, Phase

MOMENTS: Mapping[str, tuple[str, int]] = {
    "start": (Phase.START, 0),
    "join": (Phase.JOIN, 0),
    "data": (Phase.DATA, 0),
    "compile": (Phase.COMPILE, 0),
    "restore": (Phase.RESTORE, 0),
    "step": (Phase.STEP, 10),
    "save before commit": (BEFORE_COMMIT, 8),
    "save after commit": (AFTER_COMMIT, 8),
    "evaluation": (Phase.EVALUATE, 7),
}
"""What a phase of the table is to a trainer, and from which step on: checkpoints and evaluations are every 4 steps."""
IMPATIENT = "recovery.hangAfter=10s"
ALL = tuple(phase for phase in MOMENTS if phase != "join")


def at(phase: str, does: Does, *, rank: int = 1, incarnation: int = 0, seconds: float = 0.0) -> Fault:
    """What a trainer is to do in a phase of the table."""
    moment, step = MOMENTS[phase]
    return Fault(does=does, moment=moment, rank=rank, step=step, incarnation=incarnation, seconds=seconds)


def _ends(
    phase: str, *, does: Does, charged: Cause, rank: int = 1, changes: Sequence[str] = (), note: str = ""
) -> Outcome:
    """What is charged once, and goes on."""
    run = ground().put(at(phase, does, rank=rank), changes=(EVALUATED, *changes), restores=phase == "restore")
    return run.outcome(charged=once(charged), note=note)


def _late(phase: str) -> Outcome:
    """Of a rank that only comes later, nothing is to be noticed."""
    run = ground().put(at(phase, Does.LATE, seconds=8.0), changes=(EVALUATED, "recovery.hangAfter=30s"))
    return run.outcome(charged={}, note="8 s late")


def _row(fault: str, phases: tuple[str, ...], measure: Callable[[str], Outcome]) -> Row:
    return Row(place="local", fault=fault, phases=phases, measure=measure)


ROWS = (
    _row("trainer killed", ALL, partial(_ends, does=Does.KILL, charged=Cause.FAILURE)),
    _row(
        "trainer of rank 0 killed",
        ("compile", "step", "save before commit", "save after commit"),
        partial(_ends, does=Does.KILL, charged=Cause.FAILURE, rank=0),
    ),
)
