"""Rows of trainers, agents, hosts and Ray that end, fail, stand still, are late or slow."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.faults.ground import ground, once
from benchmarks.faults.outcome import Outcome, Row
from benchmarks.faults.plan import AFTER_COMMIT, BEFORE_COMMIT, Does, Fault, Plan
from benchmarks.faults.volume import ended, system_calls
from tests.cli.shell import EVALUATED
from tests.hosts.test_ray import both_step, part_of_ray

from shardwise.protocol.contract import Cause, Phase

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
SLICES = ("hardware.topology=1x2", "hardware.slices=2")
_ALL = tuple(phase for phase in MOMENTS if phase != "join")
_SLOW = Plan(late_seconds=(0.3, 0.3))


def at(phase: str, does: Does, *, rank: int = 1, attempt: int = 0, seconds: float = 0.0) -> Fault:
    """What a trainer is to do in a phase of the table."""
    moment, step = MOMENTS[phase]
    return Fault(does=does, moment=moment, rank=rank, step=step, attempt=attempt, seconds=seconds)


def _ends(
    phase: str, *, does: Does, charged: Cause, rank: int = 1, changes: Sequence[str] = (), note: str = ""
) -> Outcome:
    """What is charged once, and goes on."""
    put = ground().put_to_restored if phase == "restore" else ground().put
    run = put(at(phase, does, rank=rank), changes=(EVALUATED, *changes))
    return run.outcome(charged=once(charged), note=note)


def _stuck_in_collective(phase: str) -> Outcome:
    """What one trainer sends to the other does not leave it: both have handed out the same step, and wait."""
    run = ground().put(at(phase, Does.HOLD), changes=[IMPATIENT])
    run.until_put()
    word = run.run.progress(1)
    assert word is not None
    with system_calls(word.pid, "writev", "delay_enter=600s"):
        run.put_now()
        run.let_go()
        run.run.until(lambda: ended(word.pid))
    return run.outcome(charged=once(Cause.HANG), note="what rank 1 sends does not leave it; hangAfter is 10 s")


def _late(phase: str) -> Outcome:
    """A rank that only comes later is no fault, and nothing is said of it."""
    put = ground().put_to_restored if phase == "restore" else ground().put
    run = put(at(phase, Does.LATE, seconds=4.0), changes=(EVALUATED, IMPATIENT))
    return run.outcome(charged={}, note="4 s late: less than what is allowed before a stall is said")


def _slow(_: str, *, plan: Plan, note: str) -> Outcome:
    """A slow host is named, and never ended."""
    run = ground().start(plan)
    run.until_stepping()
    run.put_now()
    slow = run.until_told(lambda told: told.event == "slow")
    note = f"{note}; {slow.record['message']} (host {slow.record['host']})"
    return run.outcome(charged={}, cause="none", told=slow, note=note)


def _computes_wrong(phase: str) -> Outcome:
    """A device that is broken until its trainer ends is found by the next measurement, one a second."""
    run = ground().start(replace(_SLOW, faults=(at(phase, Does.WRONG),)))
    return run.outcome(charged=once(Cause.DEVICE), note="one number in a device's memory is another one")


def _of_ray(phase: str, *, host: int, named: Callable[[str], bool]) -> Outcome:
    """Losing a part of Ray stops no training and loses no step; in other phases than a step rank 1 waits for it."""
    if phase == "step":
        run = ground().start(_SLOW)
        run.run.until_status(both_step(1))
    else:
        run = ground().put(at(phase, Does.HOLD), changes=(EVALUATED,))
        run.until_put()
    pid = part_of_ray(run.run, host, named)
    run.put_now()
    os.kill(pid, signal.SIGKILL)
    run.let_go()
    return run.outcome(charged={}, note="training goes on meanwhile")


def _twice(phase: str, *, does: Does, charged: Mapping[str, int]) -> Outcome:
    """A second fault while the recovery from a killed trainer is in this phase; times are from the second."""
    first, second = at("step", Does.KILL), at(phase, does, attempt=1)
    return ground().put(first, second).outcome(charged=charged, note="a trainer was killed in step 10 before")


def _slice_again(_: str) -> Outcome:
    """The slice is lost while a save commits, and its successor right after the next commit."""
    faults = (at("save before commit", Does.HOST), at("save after commit", Does.HOST, attempt=1))
    run = ground().put(*faults, changes=SLICES)
    note = "the first while step 8 commits, the second after it has; times are from the second"
    return run.outcome(charged={Cause.HOST_LOST: 2}, like=SLICES, note=note)


def _row(fault: str, phases: tuple[str, ...], measure: Callable[[str], Outcome]) -> Row:
    return Row(place="local", fault=fault, phases=phases, measure=measure)


def _hangs(does: Does) -> Callable[[str], Outcome]:
    return partial(_ends, does=does, charged=Cause.HANG, changes=[IMPATIENT], note="hangAfter is 10 s")


_IN_A_SAVE = ("save before commit", "save after commit")
_OF_RAY = ("compile", "step", "save before commit", "evaluation")
ROWS = (
    _row("trainer killed", _ALL, partial(_ends, does=Does.KILL, charged=Cause.FAILURE)),
    _row(
        "trainer of rank 0 killed", ("step", *_IN_A_SAVE), partial(_ends, does=Does.KILL, charged=Cause.FAILURE, rank=0)
    ),
    _row(
        "trainer raises",
        ("start", "data", "compile", "restore", "step", *_IN_A_SAVE, "evaluation"),
        partial(_ends, does=Does.RAISE, charged=Cause.FAILURE),
    ),
    _row(
        "out of memory",
        ("data", "compile", "restore", "step", "save before commit", "evaluation"),
        partial(_ends, does=Does.MEMORY, charged=Cause.OUT_OF_MEMORY),
    ),
    _row("SIGSTOP to a trainer", _ALL, _hangs(Does.STOP)),
    _row("stuck before a collective", ("join", "step", "save before commit", "evaluation"), _hangs(Does.STUCK)),
    _row("stuck in a collective", ("step",), _stuck_in_collective),
    _row("late rank", _ALL, _late),
    _row(
        "slow rank: devices",
        ("step",),
        partial(
            _slow,
            plan=Plan(late_seconds=(0.8, 0.8), slow_products=3),
            note="rank 1 is given 3 times the work where its own speed is measured",
        ),
    ),
    _row(
        "slow rank: data",
        ("step",),
        partial(_slow, plan=Plan(late_seconds=(0.0, 0.8)), note="rank 1's batches come 0.8 s late"),
    ),
    _row("device that computes wrong", ("step",), _computes_wrong),
    _row("Ray's head killed", _OF_RAY, partial(_of_ray, host=0, named=lambda name: name.endswith("/gcs_server"))),
    _row("Ray's node process killed", _OF_RAY, partial(_of_ray, host=1, named=lambda name: name.endswith("/raylet"))),
    _row("Ray's worker killed", _OF_RAY, partial(_of_ray, host=1, named=lambda name: name.startswith("ray::"))),
    _row("agent killed", _ALL, partial(_ends, does=Does.AGENT, charged=Cause.HOST_LOST)),
    _row(
        "agent killed that leads",
        ("compile", "step", "save before commit"),
        partial(_ends, does=Does.AGENT, charged=Cause.HOST_LOST, rank=0),
    ),
    _row(
        "host killed",
        _ALL,
        partial(_ends, does=Does.HOST, charged=Cause.HOST_LOST),
    ),
    _row(
        "host killed that leads",
        ("step", "save after commit"),
        partial(_ends, does=Does.HOST, charged=Cause.HOST_LOST, rank=0),
    ),
    _row(
        "trainer killed again while it recovers",
        ("start", "restore", "compile"),
        partial(_twice, does=Does.KILL, charged={Cause.FAILURE: 2}),
    ),
    _row(
        "host killed while a trainer recovers",
        ("start", "restore"),
        partial(_twice, does=Does.HOST, charged={Cause.FAILURE: 1, Cause.HOST_LOST: 1}),
    ),
    _row("slice killed twice", ("save before and after commit",), _slice_again),
)
