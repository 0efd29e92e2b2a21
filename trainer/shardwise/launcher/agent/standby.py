"""A process that waits for orders, with its imports done: what becomes the next trainer of a host.

It waits on a socket, so none outlives its agent. The first is started, each other one is forked by the trainer before
it when that gets its orders (docs/decisions/0019-forked-trainers.md). The output goes to a file in the folder of the
logs, which is renamed when the orders are given: a file cannot be moved to another disk while it is written.
"""

import asyncio
import fcntl
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from shardwise.job.environment import trainer_environment
from shardwise.job.spec import TrainingJob
from shardwise.launcher.agent.config import PROGRAM, AgentConfig
from shardwise.launcher.agent.trainer import GONE_WITHIN_SECONDS, Trainer
from shardwise.launcher.system import processes
from shardwise.launcher.system.processes import Process, readable, send_signal
from shardwise.protocol.contract import LOGS, log_path
from shardwise.protocol.orders import Orders

_SAID_BYTES = 32
_STANDBY_BYTES = 400 << 20
_AGAIN_SECONDS = 10.0
_AGENT = secrets.token_hex(4)  # which one of a host: their pods have the same process numbers


class Standby:
    """A process that waits for orders, or will: its socket and its log exist before it does.

    Either `start` starts it, or a trainer forks it that was given it as `successor`.
    """

    def __init__(self, directory: Path, host: int) -> None:
        """Make the socket and the log, and no process yet."""
        log, name = tempfile.mkstemp(prefix=f".standby-{host}-{_AGENT}-", suffix=".log", dir=directory / LOGS)
        os.fchmod(log, 0o644)
        # For all that inherit it: the file is cut under them when it has grown too large (`log_bound.py`).
        fcntl.fcntl(log, fcntl.F_SETFL, fcntl.fcntl(log, fcntl.F_GETFL) | os.O_APPEND)
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
        return self._handle is not None and not readable(self._handle)

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
            send_signal(self._handle, signal.SIGKILL)
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


class Standbys:
    """The standby of one host: at most one at a time, for each may be as large as all that a trainer imports."""

    def __init__(self, config: AgentConfig, job: TrainingJob) -> None:
        """Have none yet; the job determines a trainer's environment."""
        self._config = config
        inherited = processes.clean_environment()
        mark = processes.mark(config.directory, config.host)
        self._environment = inherited | trainer_environment(job, inherited) | mark
        # A program is no fork of the one before it, and would not expect a child that it has not made.
        self._forks = job.spec.program is None
        self._command = config.trainer_command if self._forks else PROGRAM
        self._standby: Standby | None = None
        self._again_at = 0.0

    @property
    def alive(self) -> bool:
        """Return whether there is one."""
        return self._standby is not None and self._standby.alive

    @property
    def ready(self) -> bool:
        """Return whether there is one with its imports done."""
        return self._standby is not None and self._standby.ready

    async def keep(self) -> None:
        """Start one if there is none, and memory allows it. What refuses it is tried again later.

        The trainer that runs needs none; the next one does, and if it cannot be started its orders are refused.
        """
        if not self.alive and time.monotonic() >= self._again_at and _has_room():
            try:
                await self._started()
            except OSError as error:
                sys.stderr.write(f"no trainer can stand by: {error}; trying again in {_AGAIN_SECONDS:g} s\n")
                self._again_at = time.monotonic() + _AGAIN_SECONDS

    async def take(self) -> tuple[Standby, Standby | None]:
        """Return a standby to give orders to, and the next one, which it is to fork if it can and memory allows it."""
        standby = self._standby if self._standby and self._standby.alive else await self._started()
        forked = self._forks and _has_room()
        self._standby = Standby(self._config.directory, self._config.host) if forked else None
        return standby, self._standby

    async def give(self, orders: Orders) -> Trainer:
        """Make a trainer of a standby by giving it orders; OSError if the volume refuses, and nothing of it is left."""
        standby, successor = await self.take()
        try:
            return standby.give(orders, successor)
        except OSError:
            await standby.end()
            raise

    async def dismiss(self) -> None:
        """End it."""
        standby, self._standby = self._standby, None
        if standby:
            await standby.end()

    async def _started(self) -> Standby:
        await self.dismiss()
        made = Standby(self._config.directory, self._config.host)
        try:
            self._standby = await made.start(self._command, self._environment)
        except OSError:
            await made.end()
            raise
        return self._standby


def remove_standby_logs(directory: Path, host: int, *, of_others: bool = True) -> None:
    """Remove the logs of standbys that a killed agent has left.

    An agent that leaves may have a successor already, so it removes its own alone: without `of_others`.
    """
    for log in (directory / LOGS).glob(f".standby-{host}-{'' if of_others else _AGENT}*"):
        log.unlink(missing_ok=True)


def _has_room() -> bool:
    """Return whether the host has four times as much memory to spare as one more standby takes."""
    return psutil.virtual_memory().available >= 4 * _STANDBY_BYTES
