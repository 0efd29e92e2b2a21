"""Which of several exits explains the end of an attempt, and what the command's exit code is then."""

import signal

import pytest

from shardwise.launcher.leader.causes import attribute, follows_from_a_peer, or_by_leaving
from shardwise.protocol.contract import Cause, ExitCode
from shardwise.protocol.report import Exit


def ended(code: int | None = None, by: int | None = None, *, asked: bool = False, memory: bool = False) -> Exit:
    """Return an exit."""
    return Exit(attempt=0, code=code, signal=by, asked=asked, out_of_memory=memory, log_tail="")


KILLED, ABORTED = ended(by=signal.SIGKILL), ended(by=signal.SIGABRT)
FAILED, GONE, ASKED = ended(1), ended(ExitCode.PEER), ended(by=signal.SIGKILL, asked=True)
STARVED = ended(by=signal.SIGKILL, asked=True, memory=True)


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
        ([GONE, STARVED], [], Cause.OUT_OF_MEMORY, 1, 83),
        ([ABORTED, STARVED], [], Cause.OUT_OF_MEMORY, 1, 83),
        ([FAILED, STARVED], [], Cause.FAILURE, 0, 1),
    ],
)
def test_cause(exits: list[Exit], lost: list[int], cause: Cause, rank: int, code: int) -> None:
    """A lost host explains everything, then memory, a kill, an exit code with a cause, any failure, and a lost peer.

    A lost peer is explained by the memory of its host, if the kernel had to take some there.
    """
    ending = attribute(dict(enumerate(exits)), lost, None, None)

    assert (ending.cause, ending.rank, ending.exit_code) == (cause, rank, code)


def test_hang() -> None:
    """The end of an attempt that the watchdog ended is explained by the watchdog's message."""
    ending = attribute({0: ASKED, 1: ASKED}, [], "no progress for 9 s", 1)
    assert (ending.cause, ending.rank, ending.message) == (Cause.HANG, 1, "no progress for 9 s")


def test_in_words() -> None:
    """Which rank ended and how, and where the kernel had a part in it; of what the exit code names it had none."""
    starved = attribute({3: ended(by=signal.SIGKILL, memory=True)}, [], None, None)
    killed, full = (attribute({3: each}, [], None, None) for each in (KILLED, ended(ExitCode.OUT_OF_MEMORY)))

    assert starved.message == f"{killed.message} (the kernel had no memory left)"
    assert killed.message.startswith("rank 3 ended with ")
    assert "kernel" not in full.message


@pytest.mark.parametrize(
    ("exit_", "hosts", "cause", "rank"),
    [
        (GONE, [1, 2], Cause.HOST_LOST, 1),
        (FAILED, [1], Cause.HOST_LOST, 1),
        (FAILED, [], Cause.FAILURE, 0),
        (KILLED, [1], Cause.FAILURE, 0),
        (ended(ExitCode.BAD_INPUT), [1], Cause.BAD_INPUT, 0),
    ],
)
def test_a_host_that_leaves_before_the_first_step(exit_: Exit, hosts: list[int], cause: Cause, rank: int) -> None:
    """It explains what may follow from a peer's end, so the job is not charged with a failure; and nothing else."""
    ending = attribute({0: exit_}, [], None, None)
    explained = or_by_leaving(ending, hosts)

    assert (explained.cause, explained.rank) == (cause, rank)
    assert ending.message in explained.message


def test_a_hang_is_no_leaving() -> None:
    """The watchdog has seen it."""
    hang = attribute({0: ASKED}, [], "no progress for 9 s", 0)

    assert or_by_leaving(hang, [1]) == hang


@pytest.mark.parametrize(
    ("exit_", "follows"),
    [
        *((FAILED, True), (GONE, True), (ABORTED, True)),
        *((KILLED, False), (ASKED, False), (ended(82), False), (ended(80), False), (ended(83), False)),
        (ended(by=signal.SIGKILL, memory=True), False),
    ],
)
def test_what_a_peers_end_looks_like(exit_: Exit, follows: bool) -> None:  # noqa: FBT001  a column of a table
    """A plain failure may follow from a peer's; a kill or an exit code that names a cause does not."""
    assert follows_from_a_peer(exit_) == follows


def test_of_many_lost_hosts_a_few_are_named() -> None:
    """The message of a lost rack, or of all hosts but one, is one that a person reads."""
    ending = attribute({}, set(range(1, 1024)), None, None)

    assert (ending.cause, ending.rank) == (Cause.HOST_LOST, 1)
    assert ending.message.startswith("host 1, host 2, host 3, ")
    assert ending.message.endswith(" and 1013 others went away")
    assert len(ending.message) < 150
