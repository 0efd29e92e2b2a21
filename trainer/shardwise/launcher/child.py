"""One trainer process: started ahead of time, given its orders, signalled, ended, and asked how it ended.

Called by `host.py`. A trainer waits for its orders on a pipe; so one can stand by with its imports done, and none
outlives its agent. Its output goes to a file beside the logs, which gets its name there when the orders are given: a
file cannot be moved to another disk while it is written.
"""

import asyncio
import os
import select
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from shardwise.job.contract import LOGS, log_path
from shardwise.job.orders import READY_VARIABLE, SAVE_SIGNAL, STACKS_SIGNAL, STOP_SIGNAL, Orders
from shardwise.launcher import processes
from shardwise.launcher.lines import size_of
from shardwise.launcher.memory_events import oom_kills
from shardwise.launcher.report import Exit

TAIL_LINES = 20
TAIL_BYTES = 2000
GONE_WITHIN_SECONDS = 30.0
_LOOK_SECONDS = 0.05
_STACKS_SECONDS = 2.0
_USED = slice(11, 13)  # utime and stime, where the state is 0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_WORDS = {"stop": STOP_SIGNAL, "save": SAVE_SIGNAL}


class StuckError(OSError):
    """A process that SIGKILL does not end: the kernel holds it, for a device's driver or a disk that do not answer."""


class Trainer:
    """A trainer process; it stands by until it has `orders`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, ready: int) -> None:
        """Made by `start`; `ready` is the end of a pipe whose other end the process closes when it can take orders."""
        self._process, self._log, self._ready = process, log, ready
        self._handle = os.pidfd_open(process.pid)
        self._oom_kills = oom_kills()
        self._asked = False
        self.orders: Orders | None = None

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str], directory: Path, host: int) -> Self:
        """Start a process that waits for its orders."""
        logs = directory / LOGS
        handle, log = tempfile.mkstemp(prefix=_standby_prefix(host), suffix=".log", dir=logs)
        os.fchmod(handle, 0o644)
        ready, said = os.pipe()
        try:
            process = await processes.start(
                *command,
                environment={**environment, READY_VARIABLE: str(said)},
                stdin=asyncio.subprocess.PIPE,
                stdout=handle,
                stderr=handle,
                pass_fds=(said,),
            )
        finally:
            os.close(handle)
            os.close(said)
        return cls(process, Path(log), ready)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs, as the kernel knows it at this moment."""
        return not _readable(self._handle)

    @property
    def ready(self) -> bool:
        """Whether its imports are done, so that orders are obeyed at once."""
        return self.alive and _readable(self._ready)

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

    def give(self, orders: Orders) -> None:
        """Name the log after the incarnation, and hand over the orders."""
        named = log_path(Path(orders.directory), orders.incarnation, orders.rank)
        named.parent.mkdir(exist_ok=True)
        self._log = self._log.rename(named)
        self.orders = orders
        assert self._process.stdin is not None
        self._process.stdin.write(f"{orders.dumps()}\n".encode())

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
            incarnation=self.orders.incarnation if self.orders else -1,
            code=status if status >= 0 else None,
            signal=-status if status < 0 else None,
            asked=self._asked,
            out_of_memory=oom_kills() > self._oom_kills,
            log_tail=tail(self._log),
        )

    def close(self) -> None:
        """Forget an ended process; the log of one that never got orders goes away."""
        os.close(self._handle)
        os.close(self._ready)
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self.orders is None:
            self._log.unlink(missing_ok=True)

    def _stat(self) -> list[str]:
        """What /proc/PID/stat says after the name, from the state on; nothing when it is gone."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return text.rpartition(")")[2].split()

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended, which its exit says
            signal.pidfd_send_signal(self._handle, number)


def remove_standby_logs(directory: Path, host: int) -> None:
    """Remove the logs of standby trainers that nobody could tidy up after."""
    for log in (directory / LOGS).glob(f"{_standby_prefix(host)}*"):
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
