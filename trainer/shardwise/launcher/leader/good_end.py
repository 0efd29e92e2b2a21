"""How an attempt that ended well is told: that the run is complete, or what is known of what a stop has left."""

from dataclasses import dataclass

from shardwise.launcher.leader.attempt import Attempt
from shardwise.launcher.leader.decision import Action
from shardwise.launcher.leader.result import saved
from shardwise.launcher.leader.state import LeaderState
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.leader_record import RunResult
from shardwise.protocol.storage import passing_over


@dataclass(frozen=True, kw_only=True)
class Reached:
    """What is known of an attempt that ended because it was asked to stop.

    `silent` is whether a program runs that has reported nothing. `step` is the last one that was completed, None if the
    attempt completed none, and `checkpoint` the step of the newest one that is known, None without one.
    """

    is_program: bool = False
    silent: bool = False
    step: int | None = None
    checkpoint: int | None = None


async def result_of(action: Action, running: Attempt, state: LeaderState) -> RunResult | None:
    """Return the result of an attempt that this action has ended well; None of another."""
    if action is Action.COMPLETE:
        return RunResult(code=ExitCode.OK, message="complete")
    if action not in (Action.SAVED, Action.LEAVE, Action.GIVE_UP):
        return None
    metrics = state.metrics
    with passing_over():
        await metrics.read_all()  # what was saved while it ended
    reached = Reached(
        is_program=state.job.spec.program is not None,
        silent=running.silent,
        step=metrics.last["step"] if running.stepped else None,
        checkpoint=metrics.checkpoint.step if metrics.checkpoint else None,
    )
    return forced(reached) if action is Action.GIVE_UP else stopped(reached)


def stopped(reached: Reached) -> RunResult:
    """Return the result of a run that stopped well, in words that say no more than is known.

    A trainer ends well only if it has saved; a program may end without, or save by itself.
    """
    if reached.silent:
        return saved("stopped; what the program has saved is its own affair")
    if reached.step is None:
        return saved("stopped before the first step; there was nothing to save")
    if not reached.is_program or (reached.checkpoint is not None and reached.checkpoint >= reached.step):
        return saved("saved and stopped")
    return saved(f"stopped after step {reached.step}; {_kept(reached)}")


def forced(reached: Reached) -> RunResult:
    """Return the result of a run whose program did not end when it was asked to."""
    went_on = "the program went on with its steps as if should_stop() were false"
    return saved(f"stopped by force: {went_on}; {_kept(reached)}")


def _kept(reached: Reached) -> str:
    newest = reached.checkpoint
    return "shardwise knows of no checkpoint" if newest is None else f"the newest checkpoint is of step {newest}"
