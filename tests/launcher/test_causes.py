"""Which of several ends explains an incarnation's, and what the command's exit code is then."""

import signal

import pytest

from shardwise.job.contract import Cause, ExitCode
from shardwise.launcher.causes import attribute, follows_from_a_peer
from shardwise.launcher.report import Exit


def ended(code: int | None = None, by: int | None = None, *, asked: bool = False, memory: bool = False) -> Exit:
    """Return an end."""
    return Exit(incarnation=0, code=code, signal=by, asked=asked, out_of_memory=memory, log_tail="")


KILLED, ABORTED = ended(by=signal.SIGKILL), ended(by=signal.SIGABRT)
FAILED, GONE, ASKED = ended(1), ended(ExitCode.PEER), ended(by=signal.SIGKILL, asked=True)


@pytest.mark.parametrize(
    ("exits", "lost", "cause", "rank", "code"),
    [
        ([FAILED, ASKED], [], Cause.FAILURE, 0, 1),
        ([FAILED, KILLED], [], Cause.FAILURE, 1, 1),
        ([ABORTED, KILLED], [], Cause.FAILURE, 1, 1),
        ([ABORTED, ended(ExitCode.NONFINITE)], [], Cause.NONFINITE, 1, 82),
        ([FAILED, ended(ExitCode.BAD_INPUT)], [], Cause.BAD_INPUT, 1, 81),
        ([FAILED, ended(ExitCode.USAGE)], [], Cause.BAD_INPUT, 1, 2),
        ([KILLED, ended(ExitCode.OUT_OF_MEMORY)], [], Cause.OUT_OF_MEMORY, 1, 83),
        ([ended(by=signal.SIGSEGV), ended(by=signal.SIGKILL, memory=True)], [], Cause.OUT_OF_MEMORY, 1, 83),
        ([ended(1, memory=True), ASKED], [], Cause.FAILURE, 0, 1),
        ([ended(ExitCode.OUT_OF_MEMORY), ASKED], [1], Cause.HOST_LOST, 1, 1),
        ([ended(0), ended(3)], [], Cause.FAILURE, 1, 1),
        ([GONE, ended(ExitCode.STORAGE)], [], Cause.STORAGE, 1, 84),
        ([FAILED, ended(ExitCode.DEVICE)], [], Cause.DEVICE, 1, 85),
        ([GONE, FAILED], [], Cause.FAILURE, 1, 1),
        ([GONE, ABORTED], [], Cause.FAILURE, 1, 1),
        ([GONE, ASKED], [], Cause.DEVICE, 0, 85),
    ],
)
def test_cause(exits: list[Exit], lost: list[int], cause: Cause, rank: int, code: int) -> None:
    """A lost host explains everything, then memory, a kill, a trainer's own word, an error, and a lost peer."""
    ending = attribute(dict(enumerate(exits)), lost, None, None)

    assert (ending.cause, ending.rank, ending.exit_code) == (cause, rank, code)


def test_hang() -> None:
    """What the watchdog ended is its word."""
    ending = attribute({0: ASKED, 1: ASKED}, [], "no progress for 9 s", 1)
    assert (ending.cause, ending.rank, ending.words) == (Cause.HANG, 1, "no progress for 9 s")


@pytest.mark.parametrize(
    ("exit_", "follows"),
    [
        *((FAILED, True), (GONE, True), (ABORTED, True)),
        *((KILLED, False), (ASKED, False), (ended(82), False), (ended(80), False)),
    ],
)
def test_what_a_peers_end_looks_like(exit_: Exit, follows: bool) -> None:  # noqa: FBT001  a column of a table
    """A plain failure may be another's; a kill or a trainer's own word is not."""
    assert follows_from_a_peer(exit_) == follows
