"""What the leader does next with a running attempt, decided at every look and nowhere else.

Pure; `test_decision.py` is its table.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from shardwise.protocol.contract import ExitCode
from shardwise.protocol.report import Exit

STOP_WITHIN_SECONDS = 2.0
PROGRAM_STOP_SECONDS = 120.0
"""The same for a program that reports nothing: it may save by itself, as in a pod's usual grace period. Also for one
that reports, and goes on as if it were not told."""
UNHEEDED_STEPS = 10
"""How many looks find such a program at a new step, in this time: one that saves for long takes none."""


class Action(StrEnum):
    """What to do next."""

    WAIT = "wait"  # it runs
    STOP = "stop"  # tell every trainer to stop
    LEAVE = "leave"  # a stop was asked for and there is nothing to save: end every trainer
    GIVE_UP = "giveUp"  # a program goes on with its steps though it was told to stop: end every process
    COMPLETE = "complete"  # every trainer has reached the end of the job
    SAVED = "saved"  # every trainer has stopped
    END = "end"  # it has failed: end every trainer, and find the cause


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One look at an attempt.

    `exits` are of the ranks that have ended; `lost` are the hosts that went away; `hung` is the watchdog's judgement.
    `stopping_seconds` is how long ago the trainers were told to stop, None before. `stepped` is whether a step was
    completed in this attempt, so that there is something to save; `silent` is whether a program runs that has reported
    nothing, so that no one knows. `unheeded_steps` is at how many looks a program had completed another step since it
    was told to stop; it stays 0 for a trainer, which stops at the next.
    """

    num_hosts: int
    exits: Mapping[int, Exit]
    lost: Collection[int]
    hung: bool
    stop_asked: bool
    stopping_seconds: float | None
    stepped: bool
    silent: bool = False
    unheeded_steps: int = 0


def decide(observed: Observed) -> Action:
    """Return the next action."""
    exits = list(observed.exits.values())
    if observed.lost or any(ended.bad for ended in exits):
        return Action.END
    if len(exits) == observed.num_hosts:
        complete = all(ended.code == ExitCode.OK for ended in exits)
        return Action.COMPLETE if complete else Action.SAVED
    # A trainer that has stopped alone, by a signal from outside, leaves its peers waiting for it: stop them too.
    stop = observed.stop_asked or any(ended.saved for ended in exits)
    if stop and observed.stopping_seconds is None:
        return Action.STOP
    # A trainer stops at the end of a step. Before the first one that may be minutes away, and nothing would be lost.
    since = observed.stopping_seconds
    bound = PROGRAM_STOP_SECONDS if observed.silent else STOP_WITHIN_SECONDS
    if since is not None and since >= bound and not observed.stepped:
        return Action.LEAVE
    if since is not None and since >= PROGRAM_STOP_SECONDS and observed.unheeded_steps >= UNHEEDED_STEPS:
        return Action.GIVE_UP
    return Action.END if observed.hung else Action.WAIT
