"""One trainer process: made ahead of time, given its orders, signalled, ended, and asked how it ended.

Called by `host.py`. A process waits for its orders on a socket; so one can stand by with its imports done, and none
outlives its agent. The first is started, the others are forked by the trainer before them when that gets its orders
(docs/decisions/0019-forked-trainers.md). The output goes to a file beside the logs, which gets its name there when the
orders are given: a file cannot be moved to another disk while it is written.
"""

import asyncio
import os
import secrets
import select
import signal
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from shardwise.job.contract import LOGS, log_path
from shardwise.job.orders import SAVE_SIGNAL, STACKS_SIGNAL, STOP_SIGNAL, Orders
from shardwise.launcher import processes
from shardwise.launcher.lines import size_of
from shardwise.launcher.memory_events import oom_kills
from shardwise.launcher.processes import Process
from shardwise.launcher.report import Exit

TAIL_LINES = 20
TAIL_BYTES = 2000
GONE_WITHIN_SECONDS = 30.0
_SAID_BYTES = 32
_LOOK_SECONDS = 0.05
_STACKS_SECONDS = 2.0
_USED = slice(11, 13)  # utime and stime, where the state is 0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_AGENT = secrets.token_hex(4)  # which one of a host: their pods have the same process numbers
_WORDS = {"stop": STOP_SIGNAL, "save": SAVE_SIGNAL}


class StuckError(OSError):
    """A process that SIGKILL does not end: the kernel holds it, for a device's driver or a disk that do not answer."""


class Standby:
    """A process that waits for orders, or will: its socket and its log are there before it is.

    Either `start` starts it, or a trainer forks it that is given it as `successor`.
    """

    def __init__(self, directory: Path, host: int) -> None:
        """No process yet."""
        log, name = tempfile.mkstemp(prefix=f"{_standby_prefix(host)}{_AGENT}-", suffix=".log", dir=directory / LOGS)
        os.fchmod(log, 0o644)
        self._log = Path(name)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        self._theirs: tuple[int, ...] = theirs.detach(), log
        self._process: Process | None = None
        self._pid = 0
        self._handle: int | None = None
        self._imported = False

    async def start(self, command: Sequence[str], environment: Mapping[str, str]) -> Self:
        """Start it: imports are before it."""
        channel, log = self._theirs
        self._process = await processes.start(*command, environment=environment, stdin=channel, stdout=log, stderr=log)
        self._pid, self._handle = self._process.pid, os.pidfd_open(self._process.pid)
        self._let_go_of_theirs()
        return self

    @property
    def alive(self) -> bool:
        """Whether it runs; one that is to be forked does when it has said so."""
        self._listen()
        return self._handle is not None and not _readable(self._handle)

    @property
    def ready(self) -> bool:
        """Whether its imports are done, so that orders are obeyed at once."""
        return self.alive and self._imported

    def give(self, orders: Orders, successor: "Standby | None") -> "Trainer":
        """Name the log after the incarnation, and hand over the orders to a process that was alive.

        One that was forked is this process's child by now: the trainer that forked it has ended.
        """
        assert self._handle is not None
        process = self._process or processes.Adopted(self._pid, self._handle)
        named = log_path(Path(orders.directory), orders.incarnation, orders.rank)
        named.parent.mkdir(exist_ok=True)
        handles = successor._theirs if successor else ()  # noqa: SLF001  of the same class
        with suppress(ConnectionError):  # it has ended, which its exit says
            socket.send_fds(self._channel, [orders.dumps().encode()], handles)
        if successor:
            successor._let_go_of_theirs()  # noqa: SLF001  as above
        return Trainer(process, self._handle, self._channel, self._log.rename(named), orders)

    async def end(self) -> None:
        """SIGKILL it, and remove its log. What the kernel holds is left to whoever ends the agent."""
        if self._handle is not None:
            _signal(self._handle, signal.SIGKILL)
            os.close(self._handle)
        else:
            self._let_go_of_theirs()
        self._channel.close()
        if self._process:
            with suppress(TimeoutError):
                async with asyncio.timeout(GONE_WITHIN_SECONDS):
                    await self._process.wait()
        self._log.unlink(missing_ok=True)

    def _let_go_of_theirs(self) -> None:
        """Leave the process's ends to it alone."""
        for handle in self._theirs:
            os.close(handle)
        self._theirs = ()

    def _listen(self) -> None:
        """Take what the process says when its imports are done."""
        with suppress(BlockingIOError, ConnectionError):
            said, handles, _, _ = socket.recv_fds(self._channel, _SAID_BYTES, 1)
            if said and self._handle is None:
                self._pid, (self._handle,) = int(said), handles
            elif said:
                os.close(handles[0])
            self._imported = self._imported or bool(said)


class Trainer:
    """A process that has its orders; made by `Standby.give`."""

    def __init__(self, process: Process, handle: int, channel: socket.socket, log: Path, orders: Orders) -> None:
        """`handle` is a pidfd."""
        self._process, self._handle, self._channel, self._log = process, handle, channel, log
        self._oom_kills = oom_kills()
        self._asked = False
        self.orders = orders

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs, as the kernel knows it at this moment."""
        return not _readable(self._handle)

    @property
    def state(self) -> str:
        """The letter of its state in /proc/PID/stat; "" when it is gone."""
        fields = self._stat()
        return fields[0] if fields else ""

    @property
    def cpu_seconds(self) -> float:
        """The processor time that all of its threads have used; 0 when it is gone."""
        fields = self._stat()
        return sum(map(int, fields[_USED])) / _TICKS_PER_SECOND if fields else 0.0

    def hear(self, word: str) -> None:
        """Let it hear "stop" or "save"."""
        self._send(_WORDS[word])

    async def stacks(self, path: Path) -> str:
        """What it is doing: as the kernel knows it, and the stacks that it writes to `path` if it still can."""
        head = f"process {self.pid}, state {self.state}, waiting in {_waiting_in(self.pid)}\n"
        size = 0
        _empty(path)
        self._send(STACKS_SIGNAL)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STACKS_SECONDS):
                while size == 0 or size != size_of(path):
                    size = size_of(path)
                    await asyncio.sleep(_LOOK_SECONDS)
        return head + (_text(path) or "it wrote no stacks\n")

    async def end(self) -> None:
        """SIGKILL it if it has not ended by itself, and wait until it is gone; StuckError where it does not go."""
        if self.alive:
            self._asked = True
            self._send(signal.SIGKILL)
        try:
            async with asyncio.timeout(GONE_WITHIN_SECONDS):
                await self._process.wait()
        except TimeoutError:
            raise StuckError(
                f"process {self.pid} has survived SIGKILL for {GONE_WITHIN_SECONDS:g} s (state {self.state}, waiting "
                f"in {_waiting_in(self.pid)}): look at its devices and network disks"
            ) from None

    async def wait(self) -> Exit:
        """How it ended, when it has."""
        status = await self._process.wait()
        return Exit(
            incarnation=self.orders.incarnation,
            code=status if status >= 0 else None,
            signal=-status if status < 0 else None,
            asked=self._asked,
            out_of_memory=oom_kills() > self._oom_kills,
            log_tail=tail(self._log),
        )

    def close(self) -> None:
        """Forget an ended process."""
        os.close(self._handle)
        self._channel.close()

    def _stat(self) -> list[str]:
        """What /proc/PID/stat says after the name, from the state on; nothing when it is gone."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return text.rpartition(")")[2].split()

    def _send(self, number: signal.Signals) -> None:
        _signal(self._handle, number)


def remove_standby_logs(directory: Path, host: int, *, of_others: bool = True) -> None:
    """Remove the logs of standby trainers that nobody could tidy up after.

    An agent that leaves may have a successor already, so it removes its own alone: without `of_others`.
    """
    for log in (directory / LOGS).glob(f"{_standby_prefix(host)}{'' if of_others else _AGENT}*"):
        log.unlink(missing_ok=True)


def tail(log: Path) -> str:
    """The last lines of a log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-TAIL_LINES:])


def has_room_for(size_bytes: int) -> bool:
    """Whether the host has four times as much memory to spare."""
    return psutil.virtual_memory().available >= 4 * size_bytes


def _signal(handle: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended, which its exit says
        signal.pidfd_send_signal(handle, number)


def _readable(handle: int) -> bool:
    """Whether reading would not wait: there is something, or the other end is closed."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def _standby_prefix(host: int) -> str:
    return f".standby-{host}-"


def _waiting_in(pid: int) -> str:
    """The kernel function that a process sleeps in, where it may be known."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text(encoding="ascii") or "nothing"
    except OSError:
        return "an unknown place"


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
