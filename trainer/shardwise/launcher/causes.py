"""Why an incarnation ended: one cause, and the rank that explains it, from how its trainers ended.

Called by the leader after everybody has ended. A pure decision: the first line of this list that fits.

    hostLost        a host went away; its peers' failures follow from it
    hang            the watchdog ended it
    outOfMemory     a trainer without memory: its exit code, or the kernel's kill
    failure         a trainer killed by a signal of its own (SIGABRT is how JAX ends when a peer is gone: see below)
    nonfinite, storage, device, badInput    the trainer's exit code says so
    failure         any other exit code, then SIGABRT: most often a peer of the one that failed
    device          trainers that only say that a peer is gone: the link between them has failed
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from signal import SIGABRT, SIGKILL

from shardwise.job.contract import Cause, ExitCode
from shardwise.launcher.report import Exit

_EXIT_CODES = {
    Cause.FAILURE: ExitCode.FAILURE,
    Cause.NONFINITE: ExitCode.NONFINITE,
    Cause.HANG: ExitCode.FAILURE,
    Cause.OUT_OF_MEMORY: ExitCode.OUT_OF_MEMORY,
    Cause.STORAGE: ExitCode.STORAGE,
    Cause.DEVICE: ExitCode.DEVICE,
    Cause.HOST_LOST: ExitCode.FAILURE,
    Cause.BAD_INPUT: ExitCode.BAD_INPUT,
}


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A bad end. `rank` and `exit` are None where no single trainer explains it; `words` are for a person."""

    cause: Cause
    rank: int | None
    exit: Exit | None
    words: str

    @property
    def exit_code(self) -> int:
        """What the command ends with if this is the last word."""
        if self.cause == Cause.BAD_INPUT and self.exit and self.exit.code is not None:
            return self.exit.code
        return _EXIT_CODES[self.cause]


def follows_from_a_peer(ended: Exit) -> bool:
    """Whether a trainer also ends like this because another one is gone, so that the cause may still show."""
    return ended.bad and not _out_of_memory(ended) and not _killed(ended) and _own_word(ended) is None


def attribute(exits: Mapping[int, Exit], lost: Collection[int], hang: str | None, hung_rank: int | None) -> Ending:
    """The cause of a bad end.

    Args:
        exits: of each rank whose agent has answered.
        lost: hosts that went away while the incarnation ran.
        hang: the watchdog's words, if it ended the incarnation.
        hung_rank: the rank that it told apart.

    """
    bad = {rank: exits[rank] for rank in sorted(exits) if exits[rank].bad}
    if lost:
        host = min(lost)
        names = ", ".join(f"host {host}" for host in sorted(lost))
        return Ending(cause=Cause.HOST_LOST, rank=host, exit=None, words=f"{names} went away")
    if hang is not None:
        return Ending(cause=Cause.HANG, rank=hung_rank, exit=None, words=hang)
    for fits in (_out_of_memory, _killed, _has_a_word, _failed, _aborted, lambda _: True):
        if found := _first(bad, fits):
            rank, ended = found
            return Ending(cause=_cause(ended), rank=rank, exit=ended, words=_words(rank, ended))
    raise AssertionError("an incarnation ended badly without a bad end")


def _first(exits: Mapping[int, Exit], fits: Callable[[Exit], bool]) -> tuple[int, Exit] | None:
    return next(((rank, ended) for rank, ended in exits.items() if fits(ended)), None)


def _out_of_memory(ended: Exit) -> bool:
    return ended.code == ExitCode.OUT_OF_MEMORY or (ended.out_of_memory and ended.signal == SIGKILL)


def _killed(ended: Exit) -> bool:
    return ended.signal not in (None, SIGABRT)


def _own_word(ended: Exit) -> Cause | None:
    """The cause that the trainer itself has named by its exit code; that a peer is gone is none."""
    if ended.code in (None, ExitCode.PEER):
        return None
    cause = _cause(ended)
    return None if cause == Cause.FAILURE else cause


def _has_a_word(ended: Exit) -> bool:
    return _own_word(ended) is not None


def _failed(ended: Exit) -> bool:
    return ended.code not in (None, ExitCode.PEER)


def _aborted(ended: Exit) -> bool:
    return ended.signal == SIGABRT


def _cause(ended: Exit) -> Cause:
    if _out_of_memory(ended):
        return Cause.OUT_OF_MEMORY
    return Cause.FAILURE if ended.code is None else Cause.of_exit(ended.code)


def _words(rank: int, ended: Exit) -> str:
    memory = " (the kernel had no memory left)" if _out_of_memory(ended) and ended.signal is not None else ""
    return f"rank {rank} ended with {ended.words}{memory}"
