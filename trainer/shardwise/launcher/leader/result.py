"""The end of a run: its result, and what the launcher adds to summary.json. Used by the leader, at the very end."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.launcher.leader.causes import Ending
from shardwise.protocol.contract import SUMMARY, Cause, ExitCode
from shardwise.protocol.files import replace_file
from shardwise.protocol.leader_record import RunResult

_UNFINISHED = (None, "starting", "running", "failed")
_ENDED_WELL = ("complete", "stopped")
_OF_A_MACHINE = (Cause.HOST_LOST, Cause.DEVICE, Cause.STORAGE, Cause.HANG)
_OF_AN_ENDING = {"cause", "rank", "exit", "log_tail"}
_SAID_OF_AN_END = ("status", "error", "cause", "rank", "exit", "logTail")


def saved(message: str) -> RunResult:
    """Return the result of a run that stopped when it was asked to."""
    return RunResult(code=ExitCode.SAVED, message=message)


def failed(ending: Ending, message: str | None = None) -> RunResult:
    """Return the result of a run that a bad end ended; the message is the ending's own unless another is given."""
    return RunResult(
        code=ending.exit_code,
        message=ending.message if message is None else message,
        cause=ending.cause,
        rank=ending.rank,
        exit=ending.exit.message if ending.exit else None,
        log_tail=ending.exit.log_tail if ending.exit else "",
    )


def stopped_badly(ending: Ending, *, stepped: bool, restarts: bool) -> RunResult:
    """Return the result of a run whose trainers ended badly after they were asked to stop.

    It stays one that can be resumed if nothing was lost, or only what a restart would have made up for.

    Args:
        ending: of the trainers.
        stepped: whether they had taken a step.
        restarts: whether the budget of the cause allows a restart.

    """
    if ending.cause != Cause.BAD_INPUT and not stepped:
        return saved(f"stopped before the first step; {ending.message}")
    if restarts and ending.cause in _OF_A_MACHINE:
        return saved(f"stopped, but the last save was not made: {ending.message}")
    return failed(ending, f"{ending.message}, when it was asked to stop")


def host_lost(host: int, message: str) -> RunResult:
    """Return the result of a run that failed for want of a host."""
    return failed(Ending(cause=Cause.HOST_LOST, rank=host, exit=None, message=message))


def hosts_released(message: str) -> RunResult:
    """Return the result of a run in a cluster that waited for a host in vain: nothing failed, and it goes on later."""
    return RunResult(code=ExitCode.HOSTS_MISSING, message=message)


def read_summary(directory: Path) -> dict[str, Any]:
    """Read the summary; empty before the first, and if a program has left something else under its name."""
    try:
        read = json.loads((directory / SUMMARY).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # the trainer writes it anew, or there is nothing to keep
        return {}
    return read if isinstance(read, dict) else {}


def complete_summary(
    directory: Path, before: Mapping[str, Any], name: str, result: RunResult, added: Mapping[str, Any]
) -> None:
    """Put the result into the summary if the trainers could not, and add what only the launcher knows.

    `before` is the summary of when the command started: a start that came to nothing does not take away what an
    earlier one reached.
    """
    now = read_summary(directory) or {"name": name}
    if now == before and now.get("status") not in _ENDED_WELL:
        # A program need not write one, and then this is how the command before this one ended.
        now = {key: value for key, value in now.items() if key not in _SAID_OF_AN_END}
    if result.code == ExitCode.SAVED and now.get("status") in (None, "starting"):
        now = dict(before) if before.get("status") in _ENDED_WELL else {**now, "status": "stopped"}
    # A trainer says itself how it ended, a program need not.
    if result.code == ExitCode.OK and now.get("status") not in _ENDED_WELL:
        now |= {"status": "complete"}
    if result.code == ExitCode.SAVED and now.get("status") in ("running", "failed"):
        now = {key: value for key, value in now.items() if key not in _SAID_OF_AN_END} | {"status": "stopped"}
    if result.code == ExitCode.HOSTS_MISSING and now.get("status") in _UNFINISHED:
        now |= {"status": "stopped"}
    if result.cause and now.get("status") in _UNFINISHED:
        ending = result.model_dump(mode="json", include=_OF_AN_ENDING)
        now |= {"status": "failed", "error": now.get("error") or result.message, **ending}
    elif result.code == ExitCode.FAILURE and not result.cause:
        now |= {"status": "failed", "error": result.message}
    replace_file(directory / SUMMARY, json.dumps({**now, **added}, indent=2) + "\n", durable=True)
