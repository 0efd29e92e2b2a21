"""Rows of what a run reads: batches that are no numbers, data and checkpoints that change, a clock that jumps."""

import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks.faults.ground import BrokenPromiseError, ground, once
from benchmarks.faults.kills import at
from benchmarks.faults.outcome import Outcome, Row
from benchmarks.faults.plan import Does, Fault, Plan
from tests.cli.damaging import committed, damage
from tests.hosts.test_killed import FILE_OF_RANK_1

from shardwise.job.identity import FINGERPRINT
from shardwise.protocol.contract import Cause, ExitCode

_BAD_BATCH = 9
_BAD = Plan(faults=(Fault(does=Does.BAD_BATCH, moment=Does.BAD_BATCH, rank=0),), bad_batch=_BAD_BATCH)


def _bad_batch(
    _: str,
    *,
    changes: Sequence[str],
    charged: Mapping[str, int],
    like: Sequence[str] | None,
    otherwise: str = "",
    cause: str,
    code: ExitCode = ExitCode.OK,
    note: str,
) -> Outcome:
    run = ground().start(_BAD, *changes)
    return run.outcome(charged=charged, like=like, otherwise=otherwise, cause=cause, code=code, note=note)


def _damaged(_: str) -> Outcome:
    """A byte of the newest checkpoint is another one, and the run has to go back to it."""
    run = ground().put(at("step", Does.HOLD))
    run.until_put()
    run.run.until(lambda: len(committed(run.run)) == 2)
    damage(committed(run.run)[-1] / "arrays" / FILE_OF_RANK_1)
    word = run.run.progress(1)
    assert word is not None
    run.put_now()
    os.kill(word.pid, signal.SIGKILL)
    run.let_go()
    outcome = run.outcome(charged=once(Cause.FAILURE), note="and a trainer killed; it goes on from the one before")
    if run.run.records("restored")[-1]["step"] != 4:
        raise BrokenPromiseError("it has not gone on from the checkpoint before the damaged one")
    return outcome


def _changed(_: str) -> Outcome:
    """What a run is cannot change under it: it is refused until the data are what they were."""
    folder = ground().shell.folder
    data, right = folder / "changing.jsonl", folder / "documents.jsonl"
    shutil.copy(right, data)
    changes = ("training.data={train: [{name: text, paths: [changing.jsonl]}], heldOut: 0.1}",)
    run = ground().put(at("step", Does.KILL), changes=changes)
    run.until_put()
    data.write_bytes(right.read_bytes().replace(b"1 times", b"2 times", 1))
    if (code := run.run.wait()) != ExitCode.BAD_INPUT:
        raise BrokenPromiseError(f"with other data it has ended with {code}")
    if FINGERPRINT not in (said := run.run.summary["error"]):
        raise BrokenPromiseError(f"it does not say that the data are others: {said}")
    shutil.copy(right, data)
    run.again()
    return run.outcome(
        charged=once(Cause.FAILURE),
        cause=f"{Cause.FAILURE}, {Cause.BAD_INPUT}",
        note="and a trainer killed; refused by name, and the same command goes on once the data are back",
    )


def _clock(_: str, *, seconds: float) -> Outcome:
    """Wall time jumps while a run steps, and then a trainer is killed."""
    run = ground().put(at("step", Does.HOLD), changes=("deadline=30m", "recovery.hangAfter=1m"))
    run.until_put()
    try:
        ground().set_clock(seconds)
        word = run.run.progress(1)
        assert word is not None
        run.put_now()
        os.kill(word.pid, signal.SIGKILL)
        run.let_go()
        outcome = run.outcome(charged=once(Cause.FAILURE), note="and a trainer killed; a stand-in for Python's clock")
    finally:
        ground().set_clock(0.0)
    if odd := {name: share for name, share in run.run.summary["goodput"].items() if not 0 <= share < 600}:
        raise BrokenPromiseError(f"goodput counts the jump: {odd}")
    return outcome


def _row(fault: str, measure: Callable[[str], Outcome]) -> Row:
    return Row(place="local", fault=fault, phases=("step",), measure=measure)


ROWS = (
    _row(
        "loss is no number, stop",
        partial(
            _bad_batch,
            changes=(),
            charged={},
            cause=Cause.NONFINITE,
            code=ExitCode.NONFINITE,
            like=None,
            otherwise="the run ends, as the job says",
            note="what badSteps does by default",
        ),
    ),
    _row(
        "loss is no number, skip",
        partial(
            _bad_batch,
            changes=("training.badSteps.nonFinite=skip",),
            charged={},
            cause="none",
            like=None,
            otherwise="no other run skips that update",
            note="the event has its batch",
        ),
    ),
    _row(
        "loss is no number, roll back",
        partial(
            _bad_batch,
            changes=("training.badSteps.nonFinite=rollBack", "recovery.restarts.nonfinite=5"),
            charged=once(Cause.NONFINITE),
            cause=Cause.NONFINITE,
            like=(f"training.data.leaveOut=[{_BAD_BATCH}]",),
            note="equal to a run without that batch",
        ),
    ),
    _row("newest checkpoint damaged", _damaged),
    _row("data changed", _changed),
    _row("clock jumps an hour ahead", partial(_clock, seconds=3600.0)),
    _row("clock jumps an hour back", partial(_clock, seconds=-3600.0)),
)
