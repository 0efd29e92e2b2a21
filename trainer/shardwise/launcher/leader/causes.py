"""Why an attempt ended: one cause, and the rank that explains it, from the exits of all its trainers.

A pure decision: the first line of this list that fits.

    hostLost        a host went away; its peers' failures follow from it
    hang            the watchdog ended the attempt
    outOfMemory     a trainer ran out of memory: by its exit code, or killed by the kernel
    failure         a trainer was killed by a signal other than SIGABRT, which JAX raises when a peer is gone
    nonfinite, storage, device, badInput    a trainer's exit code names the cause
    failure         any other exit code
    outOfMemory     all that is left says that a peer is gone, and on one host the kernel killed something for memory
    failure         SIGABRT: mostly of a trainer whose peer has failed
    device          all exit codes only report that a peer is gone: the link between them has failed
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from signal import SIGABRT, SIGKILL

from shardwise.launcher.leader.members import host_names
from shardwise.protocol.contract import Cause, ExitCode
from shardwise.protocol.report import Exit


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A bad end. `rank` and `exit` are None if no single trainer explains it; `message` is for a person."""

    cause: Cause
    rank: int | None
    exit: Exit | None
    message: str

    @property
    def exit_code(self) -> int:
        """The exit code of the command if the run ends with this."""
        if self.cause == Cause.BAD_INPUT and self.exit and self.exit.code is not None:
            return self.exit.code
        return ExitCode.__members__.get(self.cause.name, ExitCode.FAILURE)  # a hang and a lost host have none


def follows_from_a_peer(ended: Exit) -> bool:
    """Return whether a trainer whose peer is gone may end like this, so that the cause may be elsewhere."""
    return ended.bad and not _killed(ended) and not _names_a_cause(ended)


def attribute(exits: Mapping[int, Exit], lost: Collection[int], hang: str | None, hung_rank: int | None) -> Ending:
    """Return the cause of a bad end.

    Args:
        exits: the exit of each rank whose agent has answered.
        lost: hosts that went away while the attempt ran.
        hang: the watchdog's message, if it ended the attempt.
        hung_rank: the rank that the watchdog blames, if any.

    """
    bad = {rank: exits[rank] for rank in sorted(exits) if exits[rank].bad}
    if lost:
        message = f"{host_names(sorted(lost))} went away"
        return Ending(cause=Cause.HOST_LOST, rank=min(lost), exit=None, message=message)
    if hang is not None:
        return Ending(cause=Cause.HANG, rank=hung_rank, exit=None, message=hang)
    # One trainer that fails takes its peers with it, in ways that say little. So the most telling exit counts.
    for fits in (_out_of_memory, _killed, _names_a_cause, _failed):
        for rank, ended in bad.items():
            if fits(ended):
                return _explained_by(rank, ended)
    # A host without memory may stand still for so long that its peers give it up before the kernel ends its trainer.
    for rank, ended in sorted(exits.items()):
        if ended.out_of_memory:
            message = f"the peers of host {rank} gave it up, where the kernel killed processes for lack of memory"
            return Ending(cause=Cause.OUT_OF_MEMORY, rank=rank, exit=ended, message=message)
    rank, ended = next(((rank, ended) for rank, ended in bad.items() if _aborted(ended)), next(iter(bad.items())))
    return _explained_by(rank, ended)


def or_by_leaving(ending: Ending, hosts: Sequence[int]) -> Ending:
    """Attribute a failure before the first step to a leaving host that explains it."""
    # Trainers that are stopped while they meet end one by one, and those that wait for one of them fail by that.
    if not hosts or ending.exit is None or not follows_from_a_peer(ending.exit):
        return ending
    message = f"{host_names(hosts)} leaves before the first step; {ending.message}"
    return Ending(cause=Cause.HOST_LOST, rank=hosts[0], exit=None, message=message)


def _explained_by(rank: int, ended: Exit) -> Ending:
    return Ending(cause=_cause(ended), rank=rank, exit=ended, message=_describe(rank, ended))


def _out_of_memory(ended: Exit) -> bool:
    return ended.code == ExitCode.OUT_OF_MEMORY or (ended.out_of_memory and ended.signal == SIGKILL)


def _killed(ended: Exit) -> bool:
    return ended.signal not in (None, SIGABRT)


def _names_a_cause(ended: Exit) -> bool:
    """Return whether the trainer's own exit code names a cause. That a peer is gone is no cause."""
    return ended.code not in (None, ExitCode.PEER) and _cause(ended) != Cause.FAILURE


def _failed(ended: Exit) -> bool:
    return ended.code not in (None, ExitCode.PEER)


def _aborted(ended: Exit) -> bool:
    return ended.signal == SIGABRT


def _cause(ended: Exit) -> Cause:
    if _out_of_memory(ended):
        return Cause.OUT_OF_MEMORY
    return Cause.FAILURE if ended.code is None else Cause.of_exit(ended.code)


def _describe(rank: int, ended: Exit) -> str:
    memory = " (the kernel had no memory left)" if _out_of_memory(ended) and ended.signal is not None else ""
    return f"rank {rank} ended with {ended.message}{memory}"
