"""Rows of volumes that are full, read-only, gone, slow or in error, and of buckets that refuse, fail or are slow."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from benchmarks.faults import bucket
from benchmarks.faults.bucket import Bucket, Mood
from benchmarks.faults.ground import RESTORED_STEP, BrokenPromiseError, Disturbed, ground
from benchmarks.faults.kills import at
from benchmarks.faults.outcome import Outcome, Row
from benchmarks.faults.plan import Does, Plan
from benchmarks.faults.volume import Volume, mounted, system_calls

from shardwise.protocol.contract import CHECKPOINTS, Cause, ExitCode, checkpoint_name

_FULL_SECONDS = 20.0
_SAVE, _RESTORE = "save before commit", "restore"
Trouble = Callable[[Volume, int], AbstractContextManager[None]]
"""What a volume, or the storage calls of a trainer, does in the block."""
Until = Callable[[Disturbed], object]
"""How long it lasts."""


def _told(event: str) -> Until:
    return lambda run: run.until_told(lambda told: told.event == event)


def _seconds(seconds: float) -> Until:
    return lambda _: time.sleep(seconds)


def _checkpoints(root: str) -> str:
    return f"training.checkpoint={{everySteps: 4, keep: {{last: 12}}, path: {root}}}"


def _mounted() -> AbstractContextManager[Volume]:
    folder = ground().fresh_folder()
    return mounted(folder / "kept", folder / "volume")


def _volume(phase: str, *, trouble: Trouble, until: Until, note: str, storage: int = 0) -> Outcome:
    """A trainer of rank 0 waits in the phase until its volume is in trouble."""
    with _mounted() as volume:
        root = volume.folder / "checkpoints"
        fault, changes = at(phase, Does.HOLD, rank=0), [_checkpoints(str(root))]
        if phase == _RESTORE:
            run = ground().put_to_restored(fault, changes=changes, root=root)
        else:
            run = ground().put(fault, changes=changes)
        run.until_put()
        word = run.run.progress(0)
        assert word is not None
        with trouble(volume, word.pid):
            run.put_now()
            run.let_go()
            until(run)
        return run.outcome(charged={Cause.STORAGE: storage} if storage else {}, note=note)


def _gone_at_restart(_: str) -> Outcome:
    """A trainer is killed, and the others find another folder where their checkpoints were."""
    with _mounted() as volume:
        changes = [_checkpoints(str(volume.folder / "checkpoints"))]
        run = ground().put(at("step", Does.HOLD, rank=0), changes=changes)
        run.until_put()
        run.until_told(lambda told: told.event == "saved" and told.record["step"] == 8)
        word = run.run.progress(1)
        assert word is not None
        with volume.gone():
            run.put_now()
            os.kill(word.pid, signal.SIGKILL)
            run.let_go()
            run.until_told(lambda told: told.event == "ended" and told.record["cause"] == Cause.STORAGE)
        charged: dict[str, int] = {Cause.FAILURE: 1, Cause.STORAGE: 1}
        return run.outcome(
            charged=charged, note="and a trainer killed; the second restart waits 10 s, and finds it again"
        )


def _of_the_run(phase: str) -> Outcome:
    """Not the checkpoints alone are on it, but metrics, logs and what the leader keeps."""
    name = ground().fresh_name()
    with mounted(ground().fresh_folder() / "kept", ground().shell.folder / name) as volume:
        run = ground().start(Plan(faults=(at(phase, Does.HOLD, rank=0),)), name=name)
        run.until_put()
        with volume.full():
            run.put_now()
            run.let_go()
            time.sleep(_FULL_SECONDS)
        return run.outcome(charged={}, note=f"for {_FULL_SECONDS:.0f} s; what happens is told when there is room again")


def _calls(calls: str, how: str) -> Trouble:
    return lambda _, pid: system_calls(pid, calls, how)


@contextmanager
def _in_bucket(phase: str) -> Iterator[tuple[Bucket, Disturbed]]:
    """A run whose checkpoints are in a bucket, and whose rank 0 waits in the phase."""
    with bucket.serving(ground().port, ground().fresh_folder()) as served:
        changes = [_checkpoints(f"s3://{bucket.NAME}/run")]
        if phase != _SAVE:
            name = checkpoint_name(RESTORED_STEP)
            served.upload(ground().undisturbed().directory / CHECKPOINTS / name, f"run/{name}")
        run = ground().put(at(phase, Does.HOLD, rank=0), changes=changes)
        run.until_put()
        yield served, run


def _bucket(phase: str, *, mood: Mood, until: Until, note: str) -> Outcome:
    with _in_bucket(phase) as (served, run):
        served.be(mood)
        run.put_now()
        run.let_go()
        until(run)
        served.be(Mood.GOOD)
        return run.outcome(charged={}, note=note)


def _forbidden(phase: str) -> Outcome:
    """What only a person can change ends a run that has yet to read its checkpoint; the same command goes on."""
    with _in_bucket(phase) as (served, run):
        served.be(Mood.FORBIDDEN)
        run.put_now()
        run.let_go()
        if (code := run.run.wait()) != ExitCode.BAD_INPUT:
            raise BrokenPromiseError(f"without the right to read its checkpoints it has ended with {code}")
        served.be(Mood.GOOD)
        run.again()
        note = "it ends, since a person must act; the same command goes on"
        return run.outcome(charged={}, cause=Cause.BAD_INPUT, note=note)


_FSYNC, _READ = "fsync,fdatasync", "pread64,preadv,preadv2"
_UNTIL_FAILED = "until the save has failed; training goes on, and the next save is taken"
_SHORT = "for 4 s: it is tried again, and nothing else happens"


def _row(fault: str, phases: tuple[str, ...], measure: Callable[[str], Outcome]) -> Row:
    return Row(place="local", fault=fault, phases=phases, measure=measure)


def _failed_save(trouble: Trouble) -> Callable[[str], Outcome]:
    return partial(_volume, trouble=trouble, until=_told("saveFailed"), note=_UNTIL_FAILED)


def _passing(trouble: Trouble) -> Callable[[str], Outcome]:
    return partial(_volume, trouble=trouble, until=_seconds(4.0), note=_SHORT)


ROWS = (
    _row("volume full", (_SAVE,), _failed_save(lambda volume, _: volume.full())),
    _row("volume full for 4 s", (_SAVE,), _passing(lambda volume, _: volume.full())),
    _row("volume of the whole run full", ("step", _SAVE), _of_the_run),
    _row("volume read-only", (_SAVE,), _failed_save(lambda volume, _: volume.read_only())),
    _row("volume gone", (_SAVE,), _failed_save(lambda volume, _: volume.gone())),
    _row("volume gone at a restart", ("start",), _gone_at_restart),
    _row("EIO of a flush", (_SAVE,), _failed_save(_calls(_FSYNC, "error=EIO"))),
    _row("ESTALE of a flush", (_SAVE,), _failed_save(_calls(_FSYNC, "error=ESTALE"))),
    _row("EIO of reads for 4 s", (_RESTORE,), _passing(_calls(_READ, "error=EIO"))),
    _row(
        "ESTALE of reads",
        (_RESTORE,),
        partial(
            _volume,
            trouble=_calls(_READ, "error=ESTALE"),
            until=_told("ended"),
            storage=1,
            note="until the trainer has ended; the restart waits 10 s",
        ),
    ),
    _row(
        "slow volume",
        (_SAVE,),
        partial(
            _volume,
            trouble=_calls(_FSYNC, "delay_enter=300ms"),
            until=_told("saved"),
            note="each flush of rank 0 takes 0.3 s longer until the save is committed",
        ),
    ),
    _row(
        "bucket says 503",
        ("start", _RESTORE, _SAVE),
        partial(_bucket, mood=Mood.UNAVAILABLE, until=_seconds(10.0), note="for 10 s: it is tried again"),
    ),
    _row(
        "bucket is slow",
        ("start", _RESTORE, _SAVE),
        partial(_bucket, mood=Mood.SLOW, until=_seconds(10.0), note="each answer takes 0.5 s longer, for 10 s"),
    ),
    _row("bucket says 403", ("start",), _forbidden),
    _row(
        "bucket says 403 after a while",
        (_SAVE,),
        partial(_bucket, mood=Mood.FORBIDDEN, until=_told("saveFailed"), note=_UNTIL_FAILED),
    ),
)
