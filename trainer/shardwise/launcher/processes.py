"""The processes of a run: whose they are, how they start, and how they all end.

Every process that the launcher starts carries in its environment the run directory and the host it belongs to, and
hands both on to its own children. So a process that outlived its parent is still found, and ended, by whoever comes
next: a new agent for its host, the command for the whole run. Called by the command, the agents and the Ray code of
this package. It does not know what the processes do, and never ends one by its name.

A process that has ended is waited for without taking its exit code: that belongs to whoever started it.
"""

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

RUN_VARIABLE = "SHARDWISE_RUN"
HOST_VARIABLE = "SHARDWISE_HOST"

_PR_SET_CHILD_SUBREAPER = 36
_GONE_WITHIN_SECONDS = 10.0
_BARE = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


class Adopted:
    """A child of this process that it has not started: one whose own parent has ended. Like asyncio's `Process`.

    Args:
        pid: its number.
        handle: a pidfd of it.

    """

    def __init__(self, pid: int, handle: int) -> None:
        """`reap_orphans` leaves it alone from now on."""
        self.pid = pid
        self.returncode: int | None = None
        self._gone = asyncio.Event()
        self._handle = os.dup(handle)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._handle, self._reap)
        _own[pid] = self

    async def wait(self) -> int:
        """Its exit code; that of a process ended by a signal is the signal's number below zero."""
        await self._gone.wait()
        assert self.returncode is not None
        return self.returncode

    def _reap(self) -> None:
        self._loop.remove_reader(self._handle)
        ended = os.waitid(os.P_PIDFD, self._handle, os.WEXITED)
        assert ended is not None
        self.returncode = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        os.close(self._handle)
        self._gone.set()


Process = asyncio.subprocess.Process | Adopted

# The children of this process are a fact of the process, so these are too.
_own: dict[int, Process] = {}
_starting = 0


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One process for all time: its number is given to another one after it, but not with the same start."""

    pid: int
    created: float  # seconds since the epoch, as the kernel tells it

    @classmethod
    def of(cls, process: psutil.Process) -> "Identity":
        """The identity of a process that psutil has found."""
        return cls(pid=process.pid, created=process.create_time())


def mark(directory: Path, host: int) -> dict[str, str]:
    """The variables that say to which run and host a process belongs."""
    return {RUN_VARIABLE: str(directory.resolve()), HOST_VARIABLE: str(host)}


def clean_environment() -> dict[str, str]:
    """This process's variables without the marks and without Ray's: what a trainer inherits."""
    dropped = (RUN_VARIABLE, HOST_VARIABLE)
    return {name: value for name, value in os.environ.items() if name not in dropped and not name.startswith("RAY_")}


def bare_environment() -> dict[str, str]:
    """The few variables without which a Python program does not start: what Ray's processes inherit."""
    return {name: os.environ[name] for name in _BARE if name in os.environ}


def carrying(variables: Mapping[str, str]) -> list[Identity]:
    """The live processes of this user that have these variables in their environment."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):  # it ended meanwhile, or is another user's
            process = psutil.Process(pid)
            if process.uids().real == os.getuid() and variables.items() <= process.environ().items():
                found.append(Identity.of(process))
    return found


def end_carrying(variables: Mapping[str, str], except_pids: Collection[int] = ()) -> list[int]:
    """End every process with these variables, but this one and `except_pids`; the numbers of those ended.

    Blocks until they are gone. Looks again until it finds none: a process may have started another meanwhile.
    """
    spared = {os.getpid(), *except_pids}
    ended: set[int] = set()
    deadline = time.monotonic() + _GONE_WITHIN_SECONDS
    while time.monotonic() < deadline:
        found = [identity for identity in carrying(variables) if identity.pid not in spared]
        if not found:
            break
        end(found)
        ended |= {identity.pid for identity in found}
    return sorted(ended)


def end_marked(directory: Path, host: int | None, except_pids: Collection[int] = ()) -> list[int]:
    """`end_carrying` the mark of a run, and of one of its hosts unless `host` is None."""
    whole = mark(directory, host or 0)
    return end_carrying(whole if host is not None else {RUN_VARIABLE: whole[RUN_VARIABLE]}, except_pids)


def end_tree(pid: int) -> None:
    """End a process and all of its descendants; blocks until they are gone (at most 10 s: a kill can wait for a disk).

    They are stopped before the first is ended, because what a process starts after it was listed would get away.
    """
    found: dict[int, Identity] = {}
    while new := [identity for identity in _tree(pid) if identity.pid not in found]:
        found |= {identity.pid: identity for identity in new}
        _close(_signal(new, signal.SIGSTOP))
    end(found.values())


def end(identities: Iterable[Identity]) -> None:
    """SIGKILL exactly these processes, and wait until they are gone (at most 10 s)."""
    _wait(_signal(identities, signal.SIGKILL))


def is_stopped(pid: int) -> bool:
    """Whether the kernel has stopped a process (SIGSTOP), so that it does nothing until somebody lets it go on."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def become_subreaper() -> None:
    """From here on, descendants that lose their parent become children of this process, not of process 1."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) was refused")


async def start(*command: str, environment: Mapping[str, str], **options: Any) -> asyncio.subprocess.Process:
    """Start a child of this process that `reap_orphans` leaves to asyncio; `options` go to `create_subprocess_exec`.

    It gets a session of its own, so that a Ctrl-C on the terminal reaches the command alone.
    """
    global _starting  # noqa: PLW0603 - see the note at its definition
    _starting += 1
    try:
        process = await asyncio.create_subprocess_exec(
            *command, env=dict(environment), start_new_session=True, **options
        )
        _own[process.pid] = process
    finally:
        _starting -= 1
    return process


def reap_orphans() -> list[int]:
    """Take away the dead children of this process that it has not started itself; their numbers.

    Called in the event loop's thread, now and then, by a process that has become a subreaper. All of its children whose
    exit code is wanted must come from `start` or be `Adopted`; while one is being started nothing is reaped, for its
    number is not known yet.
    """
    for pid, process in list(_own.items()):
        if process.returncode is not None:
            del _own[pid]
    reaped: list[int] = []
    with contextlib.suppress(ChildProcessError):  # there is no child at all
        # One of our own that has just ended hides those behind it until asyncio has waited for it, which is at once.
        while not _starting and (ended := _ended_child()) is not None and ended not in _own:
            reaped.append(os.waitpid(ended, 0)[0])
    return reaped


def _tree(pid: int) -> list[Identity]:
    """The process and its descendants, as far as they live."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(Identity.of(process))
    return found


def _signal(identities: Iterable[Identity], number: signal.Signals) -> list[int]:
    """Signal each process that is still the one meant; open handles of those."""
    return [handle for identity in identities if (handle := _signal_one(identity, number)) is not None]


def _signal_one(identity: Identity, number: signal.Signals) -> int | None:
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        handle = os.pidfd_open(identity.pid)
        try:
            # The handle holds the number's present owner, so only what is asked after it was opened is sure.
            if psutil.Process(identity.pid).create_time() == identity.created:
                signal.pidfd_send_signal(handle, number)
                return os.dup(handle)
        finally:
            os.close(handle)
    return None


def _wait(handles: list[int]) -> None:
    """Until every process has ended, whether or not its parent has asked for its exit code."""
    deadline = time.monotonic() + _GONE_WITHIN_SECONDS
    for handle in handles:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
    _close(handles)


def _close(handles: Iterable[int]) -> None:
    for handle in handles:
        os.close(handle)


def _ended_child() -> int | None:
    """A child that has ended and that nobody has waited for; to list all children would be to read all of /proc."""
    found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return found.si_pid if found else None
