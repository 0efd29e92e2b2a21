"""shardwise.launcher.leader.good_end: what a stop is said to have left."""

import pytest

from shardwise.launcher.leader.good_end import Reached, forced, stopped
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.leader_record import RunResult


@pytest.mark.parametrize(
    ("reached", "words"),
    [
        (Reached(step=7, checkpoint=None), "saved and stopped"),
        (Reached(), "stopped before the first step; there was nothing to save"),
        (Reached(is_program=True), "stopped before the first step; there was nothing to save"),
        (Reached(is_program=True, silent=True), "stopped; what the program has saved is its own affair"),
        (Reached(is_program=True, step=209, checkpoint=209), "saved and stopped"),
        (
            Reached(is_program=True, step=209, checkpoint=200),
            "stopped after step 209; the newest checkpoint is of step 200",
        ),
        (Reached(is_program=True, step=209), "stopped after step 209; shardwise knows of no checkpoint"),
    ],
)
def test_a_stop_that_ends_well(reached: Reached, words: str) -> None:
    """It says no more than is known: a trainer has saved, a program need not have, or does it by itself."""
    assert stopped(reached) == RunResult(code=ExitCode.SAVED, message=words)


@pytest.mark.parametrize(
    ("checkpoint", "words"),
    [(200, "the newest checkpoint is of step 200"), (None, "shardwise knows of no checkpoint")],
)
def test_a_stop_by_force_says_what_there_is(checkpoint: int | None, words: str) -> None:
    """A resume begins from there, whatever steps the program has taken since."""
    result = forced(Reached(is_program=True, step=219, checkpoint=checkpoint))
    assert result.code == ExitCode.SAVED
    assert result.message.startswith("stopped by force: ")
    assert result.message.endswith(f"; {words}")
