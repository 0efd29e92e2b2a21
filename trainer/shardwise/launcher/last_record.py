"""What an agent in a pod leaves when it ends: the run as the files of its directory tell it, for the termination log.

Called by `pod.py` at every end, on every host.
"""

import json
import os
from pathlib import Path
from typing import Any

from shardwise.job.contract import METRICS, Cause
from shardwise.job.errors import ShardwiseError
from shardwise.job.pods import LastRecord
from shardwise.launcher.last_word import read_summary
from shardwise.launcher.record import GangRecord

_METRICS_BYTES = 4 << 20  # of the end of the metrics, in which the last save is looked for


def last_record(directory: Path, host: int, code: int | None, message: str = "") -> LastRecord:
    """What is left by an agent that ended with the run's exit code; without one it ended alone, `message` says why."""
    record, summary = GangRecord.read(directory), read_summary(directory)
    word = record.word if record and code is not None else {}
    step, saved = _end_of(directory / METRICS)
    return LastRecord(
        code=code,
        host=host,
        incarnation=-1 if record is None or record.incarnation is None else record.incarnation,
        step=step.get("step", 0),
        steps=summary.get("of", 0),
        loss=None if step.get("loss") is None else str(step["loss"]),
        checkpoint_step=saved,
        digest=summary.get("digest"),
        restarts=dict(record.restarts) if record else {},
        goodput={name: round(seconds, 3) for name, seconds in record.goodput.items()} if record else {},
        cause=word.get("cause"),
        rank=word.get("rank"),
        exit=word.get("exit"),
        message=word.get("words", message),
        tail=word.get("logTail", ""),
    )


def refused(host: int, error: ShardwiseError) -> LastRecord:
    """The record of an agent that could not begin; nothing of the run directory is known."""
    return LastRecord(
        code=error.exit_code,
        host=host,
        incarnation=-1,
        step=0,
        steps=0,
        loss=None,
        checkpoint_step=None,
        digest=None,
        restarts={},
        goodput={},
        cause=Cause.of_exit(error.exit_code),
        rank=None,
        exit=None,
        message=str(error),
        tail="",
    )


def _end_of(metrics: Path) -> tuple[dict[str, Any], int | None]:
    """The last completed step's record, and the last step that was saved."""
    last: dict[str, Any] = {}
    saved: int | None = None
    for line in _last_lines(metrics):
        record = json.loads(line)
        event = record.get("event")
        if event is None:
            last = record
        elif event == "saved":
            saved = record["step"]
    return last, saved


def _last_lines(path: Path) -> list[bytes]:
    """The whole lines at the end of a file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _METRICS_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return lines if size <= _METRICS_BYTES else lines[1:]
