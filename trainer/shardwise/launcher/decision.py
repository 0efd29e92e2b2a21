"""What the leader does next with a running incarnation, from what it sees of it. The one place where that is decided.

Called by the leader at every look. Pure; `test_decision.py` is its table.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from shardwise.job.contract import ExitCode
from shardwise.launcher.report import Exit

STOP_WITHIN_SECONDS = 2.0


class Action(StrEnum):
    """What to do."""

    WAIT = "wait"  # it runs
    STOP = "stop"  # tell every trainer to stop
    LEAVE = "leave"  # it is asked to stop and has nothing to save: end every trainer
    COMPLETE = "complete"  # every trainer has come to the end of the job
    SAVED = "saved"  # every trainer has stopped
    END = "end"  # it has failed: end every trainer, and find the cause


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One look at an incarnation.

    `exits` are of the ranks that have ended; `lost` the hosts that went away; `hung` the watchdog's word. `stopping`
    is for how long the trainers have known of a stop, in seconds, None before. `stepped` says whether a step was
    completed in this incarnation, so that there is something to save.
    """

    num_hosts: int
    exits: Mapping[int, Exit]
    lost: Collection[int]
    hung: bool
    stop_asked: bool
    stopping: float | None
    stepped: bool


def decide(observed: Observed) -> Action:
    """The next action."""
    exits = list(observed.exits.values())
    if observed.lost or any(ended.bad for ended in exits):
        return Action.END
    if len(exits) == observed.num_hosts:
        complete = all(ended.code == ExitCode.OK for ended in exits)
        return Action.COMPLETE if complete else Action.SAVED
    stop = observed.stop_asked or any(ended.saved for ended in exits)
    if stop and observed.stopping is None:
        return Action.STOP
    if observed.stopping is not None and observed.stopping >= STOP_WITHIN_SECONDS and not observed.stepped:
        return Action.LEAVE
    return Action.END if observed.hung else Action.WAIT
