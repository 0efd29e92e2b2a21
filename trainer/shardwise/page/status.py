"""The status of a run in one word, as `shardwise status`, its page and `shardwise top` have it."""

from collections.abc import Mapping
from typing import Any

from shardwise.protocol.contract import LIVE_STATUSES
from shardwise.protocol.run_status import RunPhase, RunStatus

UNDER_WAY = (*LIVE_STATUSES, "recovering")
"""The statuses of a run that a process holds and that has not ended."""


def status_word(summary: Mapping[str, Any], *, alive: bool, live: RunStatus | None = None) -> str:
    """Return starting, running, recovering, stopped, complete, failed, nonfinite, dead or ready.

    Args:
        summary: the run's summary.json, empty before the first start.
        alive: whether a process holds the run.
        live: what its leader says, None without one.

    """
    status: str = summary.get("status", "starting" if alive else "ready")
    if not alive:
        return "dead" if status in LIVE_STATUSES else status
    match live.phase if live else None:
        case RunPhase.RECOVERING:
            return "recovering"
        case RunPhase.RUNNING | RunPhase.STALLED:  # a silent program writes no summary
            return "running"
        case RunPhase.WAITING | RunPhase.STARTING if (
            status not in LIVE_STATUSES
        ):  # the command before this one wrote it
            return "starting"
    return status
