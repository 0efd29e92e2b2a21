"""One trainer process: made ahead of time, given its orders, signalled, and ended.

A process waits for its orders on a socket; so one can stand by with its imports done, and none outlives its agent. The
first is started, each other one is forked by the trainer before it when that gets its orders
(docs/decisions/0019-forked-trainers.md). The output goes to a file in the folder of the logs, which is renamed when the
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

from shardwise.launcher.system import processes
from shardwise.launcher.system.lines import size_of
from shardwise.launcher.system.memory_events import oom_kills
from shardwise.launcher.system.processes import Process
from shardwise.protocol.contract import LOGS, log_path
from shardwise.protocol.orders import SAVE_SIGNAL, STACKS_SIGNAL, STOP_SIGNAL, Orders
from shardwise.protocol.report import Exit

TAIL_LINES = 20
TAIL_BYTES = 2000
GONE_WITHIN_SECONDS = 30.0
_SAID_BYTES = 32
_LOOK_SECONDS = 0.05
_STACKS_SECONDS = 2.0
_USED = slice(11, 13)  # utime and stime, where the state is 0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_AGENT = secrets.token_hex(4)  # which one of a host: their pods have the same process numbers
_SIGNALS = {"stop": STOP_SIGNAL, "save": SAVE_SIGNAL}


class StuckError(OSError):
    """A process that SIGKILL does not end: the kernel holds it for a driver or a disk that does not answer."""


class Standby:
    """A process that waits for orders, or will: its socket and its log exist before it does.

    Either `start` starts it, or a trainer forks it that was given it as `successor`.
    """

    def __init__(self, directory: Path, host: int) -> None:
        """Make the socket and the log, and no process yet."""
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
        """Start the process, which begins with its imports."""
        channel, log = self._theirs
        self._process = await processes.start(*command, environment=environment, stdin=channel, stdout=log, stderr=log)
        self._pid, self._handle = self._process.pid, os.pidfd_open(self._process.pid)
        self._let_go_of_theirs()
        return self

    @property
    def alive(self) -> bool:
        """Return whether the process runs. One that is to be forked counts once it has reported itself."""
        self._listen()
        return self._handle is not None and not _readable(self._handle)

    @property
    def ready(self) -> bool:
        """Return whether its imports are done, so that it follows orders at once."""
        return self.alive and self._imported

    def give(self, orders: Orders, successor: "Standby | None") -> "Trainer":
        """Name the log after the attempt, and hand over the orders to a process that was alive.

        One that was forked is this process's child by now: the trainer that forked it has ended.
        """
        assert self._handle is not None
        process = self._process or processes.Adopted(self._pid, self._handle)
        named = log_path(Path(orders.directory), orders.attempt, orders.rank)
        named.parent.mkdir(exist_ok=True)
        handles = successor._theirs if successor else ()  # noqa: SLF001  of the same class
        with suppress(ConnectionError):  # it has ended, which its exit says
            socket.send_fds(self._channel, [orders.model_dump_json().encode()], handles)
        if successor:
            successor._let_go_of_theirs()  # noqa: SLF001  as above
        return Trainer(process, self._handle, self._channel, self._log.rename(named), orders)

    async def end(self) -> None:
        """SIGKILL it, and remove its log. A process that the kernel holds is left behind."""
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
        """Close the process's ends, which it has by now."""
        for handle in self._theirs:
            os.close(handle)
        self._theirs = ()

    def _listen(self) -> None:
        """Take what the process sends when its imports are done."""
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
        """Return the process's number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Return whether it still runs, as the kernel knows it at this moment."""
        return not _readable(self._handle)

    @property
    def state(self) -> str:
        """Return the letter of its state in /proc/PID/stat; "" when it is gone."""
        fields = self._stat()
        return fields[0] if fields else ""

    @property
    def cpu_seconds(self) -> float:
        """Return the processor time that all of its threads have used; 0 when it is gone."""
        fields = self._stat()
        return sum(map(int, fields[_USED])) / _TICKS_PER_SECOND if fields else 0.0

    def ask(self, action: str) -> None:
        """Send it the signal for "stop" or "save"."""
        self._send(_SIGNALS[action])

    async def stacks(self, path: Path) -> str:
        """Return what it is doing: as the kernel knows it, and the stacks that it writes to `path` if it still can."""
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
        """SIGKILL it if it has not ended by itself, and wait until it is gone; StuckError if it does not go."""
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
        """Wait for its end, and return how it ended."""
        status = await self._process.wait()
        return Exit(
            attempt=self.orders.attempt,
            code=status if status >= 0 else None,
            signal=-status if status < 0 else None,
            asked=self._asked,
            out_of_memory=oom_kills() > self._oom_kills,
            log_tail=tail(self._log),
        )

    def close(self) -> None:
        """Close the handles of an ended process."""
        os.close(self._handle)
        self._channel.close()

    def _stat(self) -> list[str]:
        """Return the fields of /proc/PID/stat after the name, from the state on; none when it is gone."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return text.rpartition(")")[2].split()

    def _send(self, number: signal.Signals) -> None:
        _signal(self._handle, number)


def remove_standby_logs(directory: Path, host: int, *, of_others: bool = True) -> None:
    """Remove the logs of standbys that a killed agent has left.

    An agent that leaves may have a successor already, so it removes its own alone: without `of_others`.
    """
    for log in (directory / LOGS).glob(f"{_standby_prefix(host)}{'' if of_others else _AGENT}*"):
        log.unlink(missing_ok=True)


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-TAIL_LINES:])


def has_room_for(size_bytes: int) -> bool:
    """Return whether the host has four times as much memory to spare."""
    return psutil.virtual_memory().available >= 4 * size_bytes


def _signal(handle: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended, which its exit says
        signal.pidfd_send_signal(handle, number)


def _readable(handle: int) -> bool:
    """Return whether reading would not wait: there is something, or the other end is closed."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def _standby_prefix(host: int) -> str:
    return f".standby-{host}-"


def _waiting_in(pid: int) -> str:
    """Return the kernel function that a process sleeps in, if that may be known."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text(encoding="ascii") or "nothing"
    except OSError:
        return "an unknown place"


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
