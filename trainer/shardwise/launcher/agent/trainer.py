"""One trainer process that has its orders: signalled, watched, and ended. `standby.py` starts it."""

import asyncio
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import psutil

from shardwise.launcher.ray.node import RAY_VARIABLE
from shardwise.launcher.system import processes
from shardwise.launcher.system.lines import size_of
from shardwise.launcher.system.log_bound import bounded
from shardwise.launcher.system.memory_events import oom_kills
from shardwise.launcher.system.orphans import end_orphans
from shardwise.launcher.system.processes import Process, readable, send_signal
from shardwise.protocol.bounded_log import tail_of
from shardwise.protocol.orders import SAVE_SIGNAL, STACKS_SIGNAL, STOP_SIGNAL, Orders
from shardwise.protocol.program import ATTEMPT
from shardwise.protocol.report import Exit

TAIL_LINES = 20
TAIL_BYTES = 2000
GONE_WITHIN_SECONDS = 30.0
_LOOK_SECONDS = 0.05
_STACKS_SECONDS = 2.0
_USED = slice(11, 13)  # utime and stime, where the state is 0
_USED_WITH_ENDED = slice(11, 15)  # with cutime and cstime, of the children that have ended
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_SIGNALS = {"stop": STOP_SIGNAL, "save": SAVE_SIGNAL}


class StuckError(OSError):
    """A process that SIGKILL does not end: the kernel holds it for a driver or a disk that does not answer."""


class Trainer:
    """A process that has its orders; made by `Standby.give`, in `standby.py`."""

    def __init__(self, process: Process, handle: int, channel: socket.socket, log: Path, orders: Orders) -> None:
        """`handle` is a pidfd."""
        self._process, self._handle, self._channel, self._log = process, handle, channel, log
        self._oom_kills = oom_kills()
        self._asked = self._told_to_stop = False
        self.orders = orders

    @property
    def pid(self) -> int:
        """Return the process's number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Return whether it still runs, as the kernel knows it at this moment."""
        return not readable(self._handle)

    @property
    def state(self) -> str:
        """Return the letter of its state in /proc/PID/stat; "" when it is gone."""
        fields = _stat(self.pid)
        return fields[0] if fields else ""

    @property
    def cpu_seconds(self) -> float:
        """Return the processor time that all of its threads have used; 0 when it is gone."""
        return _cpu_seconds(self.pid)

    @property
    def family_cpu_seconds(self) -> float:
        """Return the same together with its descendants': a program may be a script that waits for others.

        Those that have ended count on, as far as one that lives has waited for them.
        """
        return sum(_cpu_seconds(pid, _USED_WITH_ENDED) for pid in self._family())

    def cpu_seconds_of(self, pid: int) -> float:
        """Return what one of them has used; what all have if it is not one of them, as in a container of its own."""
        if pid == self.pid or pid in self._family():
            return _cpu_seconds(pid)
        return self.family_cpu_seconds

    @property
    def log_bytes(self) -> int:
        """Return how much it has written to its log."""
        return size_of(self._log)

    def ask(self, action: str, attempt: int | None = None) -> None:
        """Send it the signal for "stop" or "save" if it is of this attempt, or of any; and that for "stop" once.

        A request may come again because its answer was lost, and late, when the host has another trainer.
        """
        if attempt not in (None, self.orders.attempt) or (action == "stop" and self._told_to_stop):
            return
        self._told_to_stop = action == "stop" or self._told_to_stop
        self._send(_SIGNALS[action])

    async def stacks(self, path: Path) -> str:
        """Return what it is doing: as the kernel knows it, and the stacks that it writes to `path` if it still can."""
        head = f"process {self.pid}, state {self.state}, waiting in {_waiting_in(self.pid)}\n"
        size = 0
        with path.open("w+", encoding="utf-8", errors="replace") as file:
            self._send(STACKS_SIGNAL)
            with suppress(TimeoutError):
                async with asyncio.timeout(_STACKS_SECONDS):
                    while size == 0 or size != size_of(path):
                        size = size_of(path)
                        await asyncio.sleep(_LOOK_SECONDS)
            return head + (file.read() or "it wrote no stacks\n")

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

    def note(self, line: str) -> None:
        """Write a line for the program's author to its log."""
        with suppress(OSError), self._log.open("ab") as log:  # no run ends for its log
            log.write(f"{line}\n".encode())

    async def end_family(self) -> None:
        """End what a program has started, and left behind: by its variables, and what lacks them as an orphan."""
        marks = processes.mark(Path(self.orders.directory), self.orders.rank)
        await asyncio.to_thread(processes.end_carrying, marks | {ATTEMPT: str(self.orders.attempt)})
        await end_orphans(sparing=RAY_VARIABLE)

    async def wait(self) -> Exit:
        """Wait for its end, and return how it ended; keep its log within bounds meanwhile."""
        async with bounded(self._log):
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

    def _family(self) -> list[int]:
        """Return the numbers of the process and of its descendants; none when it is gone."""
        with suppress(psutil.NoSuchProcess):
            return [self.pid, *(child.pid for child in psutil.Process(self.pid).children(recursive=True))]
        return []

    def _send(self, number: signal.Signals) -> None:
        send_signal(self._handle, number)


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, from the state on; none when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _cpu_seconds(pid: int, which: slice = _USED) -> float:
    fields = _stat(pid)
    return sum(map(int, fields[which])) / _TICKS_PER_SECOND if fields else 0.0


def tail(log: Path) -> str:
    """Return the last lines of a log; "" if it cannot be read."""
    try:
        content, _ = tail_of(log, TAIL_BYTES)
    except OSError:  # what ended its process may be the same volume: how it ended is not lost for its last words
        return ""
    return "\n".join(content.decode("utf-8", "replace").splitlines()[-TAIL_LINES:])


def _waiting_in(pid: int) -> str:
    """Return the kernel function that a process sleeps in, if that may be known."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text(encoding="ascii") or "nothing"
    except OSError:
        return "an unknown place"
