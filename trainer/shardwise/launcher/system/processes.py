"""The processes of a run: which run they belong to, how they start, and how all of them are ended.

Every process that the launcher starts carries in its environment the run directory and the host it belongs to, and
passes both on to its own children. So a process that outlived its parent is still found, and ended, by what comes next:
a new agent for its host, or the command for the whole run. No process is ever ended by its name.

A process is waited for without taking its exit code, which belongs to whatever started it.
"""

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

RUN_VARIABLE = "SHARDWISE_RUN"
HOST_VARIABLE = "SHARDWISE_HOST"

_PR_SET_CHILD_SUBREAPER = 36
_NO_STREAMS = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.DEVNULL)
_GONE_WITHIN_SECONDS = 10.0
_BARE = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


class Adopted:
    """A child that this process has not started, because its own parent has ended. It works like asyncio's `Process`.

    Args:
        pid: the process's number.
        handle: a pidfd of the process.

    """

    def __init__(self, pid: int, handle: int) -> None:
        """Keep `reap_orphans` from reaping it from now on."""
        self.pid = pid
        self.returncode: int | None = None
        self._gone = asyncio.Event()
        self._handle = os.dup(handle)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._handle, self._reap)
        _own[pid] = self

    async def wait(self) -> int:
        """Wait for its end and return its exit code: minus the signal's number if a signal ended it."""
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

# Which children a process has is global to the process, so these are too.
_own: dict[int, Process] = {}  # the children whose exit code is wanted, by pid
_starting = 0  # how many are being started, so that their pid is not in `_own` yet


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One process, unmistakably: the kernel gives its number to another one later, but not with the same start time."""

    pid: int
    created: float  # seconds since the epoch, as the kernel reports it

    @classmethod
    def of(cls, process: psutil.Process) -> "Identity":
        """Return the identity of a process that psutil has found."""
        return cls(pid=process.pid, created=process.create_time())


def mark(directory: Path, host: int) -> dict[str, str]:
    """Return the variables that mark a process as one of this run and host."""
    return {RUN_VARIABLE: str(directory.resolve()), HOST_VARIABLE: str(host)}


def clean_environment() -> dict[str, str]:
    """Return what a trainer inherits: this process's variables without the marks and without Ray's."""
    dropped = (RUN_VARIABLE, HOST_VARIABLE)
    return {name: value for name, value in os.environ.items() if name not in dropped and not name.startswith("RAY_")}


def bare_environment() -> dict[str, str]:
    """Return what Ray's processes inherit: the few variables without which a Python program does not start."""
    return {name: os.environ[name] for name in _BARE if name in os.environ}


def carrying(variables: Mapping[str, str]) -> list[Identity]:
    """Return the live processes of this user that have these variables in their environment."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile, or is another user's
            process = psutil.Process(pid)
            if process.uids().real == os.getuid() and variables.items() <= process.environ().items():
                found.append(Identity.of(process))
    return found


def end_carrying(variables: Mapping[str, str], except_pids: Collection[int] = ()) -> list[int]:
    """End every process with these variables except this one and `except_pids`; return the pids of those ended.

    Blocks until they are gone, or for 10 s: a kill can wait for a disk.
    """
    # Look again until none is found, because a process may have started another one before it was killed.
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
    """End the processes of one host of a run, or of all its hosts if `host` is None, as `end_carrying` does."""
    marks = mark(directory, host or 0)
    if host is None:
        del marks[HOST_VARIABLE]
    return end_carrying(marks, except_pids)


def end(identities: Iterable[Identity]) -> None:
    """Send SIGKILL to exactly these processes, and wait until they are gone, for at most 10 s."""
    handles = [handle for identity in identities if (handle := _kill(identity)) is not None]
    deadline = time.monotonic() + _GONE_WITHIN_SECONDS
    for handle in handles:
        readable(handle, max(0.0, deadline - time.monotonic()))
        os.close(handle)


def readable(handle: int, within_seconds: float = 0.0) -> bool:
    """Return whether reading would not wait, or not for longer: there is something, or the other end is closed.

    A pidfd is readable from the end of its process on, whether or not the parent has taken the exit code.
    """
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(within_seconds * 1000))


def send_signal(handle: int, number: signal.Signals) -> None:
    """Send a signal to the process of a pidfd, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, number)


def is_stopped(pid: int) -> bool:
    """Return whether the kernel has stopped a process (SIGSTOP), so that it does nothing until a SIGCONT."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def become_subreaper() -> None:
    """Make descendants that lose their parent children of this process, instead of process 1, from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) was refused")


def own_module(name: str) -> tuple[str, ...]:
    """Return the command that starts a module of this package by this Python.

    With `-P` it is not looked for in the working directory first, nor is anything that it imports: a person's file
    there may be called `queue.py`. What it executes in its place does not inherit that.
    """
    return (sys.executable, "-P", "-m", name)


async def start(*command: str, environment: Mapping[str, str], **options: Any) -> asyncio.subprocess.Process:
    """Start a child of this process that `reap_orphans` leaves to asyncio; `options` go to `create_subprocess_exec`.

    A standard stream that they do not name is /dev/null.
    """
    global _starting  # noqa: PLW0603 - see the note at its definition
    _starting += 1
    try:
        # A session of its own, so that a Ctrl-C on the terminal reaches the command alone.
        process = await asyncio.create_subprocess_exec(
            *command, env=dict(environment), start_new_session=True, **_NO_STREAMS | options
        )
        _own[process.pid] = process
    finally:
        _starting -= 1
    return process


def reap_orphans() -> list[int]:
    """Reap the dead children that this process has neither started nor adopted; return their pids.

    To be called now and then, in the event loop's thread, by a process that has become a subreaper. All of its children
    whose exit code is wanted must come from `start` or be `Adopted`.
    """
    for pid, process in list(_own.items()):
        if process.returncode is not None:
            del _own[pid]
    reaped: list[int] = []
    with contextlib.suppress(ChildProcessError):  # this process has no child at all
        # While a child is being started its pid is unknown here, and it may have ended already: reap nothing then. One
        # of our own that has just ended hides those behind it, but only until asyncio has waited for it.
        while not _starting and (ended := _ended_child()) is not None and ended not in _own:
            reaped.append(os.waitpid(ended, 0)[0])
    return reaped


def own_children() -> frozenset[int] | None:
    """Return the children that were started or adopted here; None while one is started, which is not known yet."""
    return None if _starting else frozenset(_own)


def _kill(identity: Identity) -> int | None:
    """Kill a process if it is still the one meant; return an open pidfd of it, or None if it is gone."""
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        handle = os.pidfd_open(identity.pid)
        try:
            # The handle is of whichever process has the number now. Only a start time that is read after it was opened
            # proves that this is the process meant; after an earlier check the number could still pass to another one.
            if psutil.Process(identity.pid).create_time() == identity.created:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return os.dup(handle)
        finally:
            os.close(handle)
    return None


def _ended_child() -> int | None:
    """Return a child that has ended and was not waited for yet, and leave it so; None if there is none."""
    # To list the children by psutil would be to read all of /proc, several times a second.
    found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return found.si_pid if found else None
