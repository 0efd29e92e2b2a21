"""The termination record of an agent in a pod, made from the files of the run directory."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from shardwise.launcher.leader.metrics_record import record_of
from shardwise.launcher.leader.result import read_summary
from shardwise.launcher.system.lines import GrowingFile, size_of
from shardwise.protocol.contract import METRICS, Cause, ExitCode
from shardwise.protocol.errors import ShardwiseError
from shardwise.protocol.leader_record import LeaderRecord
from shardwise.protocol.pods import TerminationRecord
from shardwise.protocol.storage import passing_over, with_retries

_METRICS_BYTES = 4 << 20  # the end of the metrics, in which the last save is looked for


def termination_record(directory: Path, host: int, code: int | None, message: str = "") -> TerminationRecord:
    """Return the record of an agent that ended with the run's exit code, or alone: without a code, for `message`.

    A volume that cannot be read now, nor soon after, takes from it what the run has reached, and not how it ended. What
    a program has written in place of a figure takes that figure alone.
    """
    left = _Left()
    with passing_over():
        left = with_retries(partial(_Left.read, directory))
    record, summary, end = left.record, left.summary, left.end
    result = record.result if record and code is not None else None
    reached = {
        "step": end.step.get("step", 0),
        "steps": summary.get("of") or 0,  # a program need not say how many it has
        "loss": _text(end.step.get("loss")),
        "held_out_loss": _text(end.evaluated.get("heldOutLoss")),
        "checkpoint_step": end.saved.get("step"),
        "digest": summary.get("digest"),
    }
    return TerminationRecord.of_what_fits(
        reached,
        code=code,
        host=host,
        attempt=record.attempt if record else None,
        restarts=record.restarts if record else {},
        goodput={name: round(seconds, 3) for name, seconds in record.goodput.items()} if record else {},
        cause=result.cause if result else None,
        rank=result.rank if result else None,
        exit=result.exit if result else None,
        message=result.message if result else message,
        tail=result.log_tail if result else "",
    )


def refused(host: int, error: ShardwiseError) -> TerminationRecord:
    """Return the record of an agent that could not begin or has no leader; nothing is said of the run directory."""
    code = error.exit_code
    cause = None if code == ExitCode.HOSTS_MISSING else Cause.of_exit(code)  # that is no failure of the run
    return TerminationRecord(code=code, host=host, cause=cause, message=str(error))


def _text(number: object) -> str | None:
    return None if number is None else str(number)


@dataclass
class _End:
    """The last records of the metrics: of a completed step, of a save and of an evaluation; empty if there is none."""

    step: dict[str, Any] = field(default_factory=dict)
    saved: dict[str, Any] = field(default_factory=dict)
    evaluated: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Left:
    """What the run directory has of the run; nothing of it need be there."""

    record: LeaderRecord | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    end: _End = field(default_factory=_End)

    @classmethod
    def read(cls, directory: Path) -> Self:
        return cls(LeaderRecord.read(directory), read_summary(directory), _end_of(directory / METRICS))


def _end_of(metrics: Path) -> _End:
    end = _End()
    offset = max(0, size_of(metrics) - _METRICS_BYTES)
    for line in GrowingFile(metrics, offset).lines()[1 if offset else 0 :]:  # the first may be the end of one
        record = record_of(line)
        name = record.get("event", "step") if record else None
        if name in vars(end):
            setattr(end, name, record)
    return end
