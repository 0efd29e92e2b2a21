"""What an agent tells a trainer that it has started: one message on the socket that is the trainer's standard input.

The process says there that its imports are done, with its number and a handle of itself, and waits. With the orders may
come a socket and a log for another process: then it first forks one that waits in its place. So imports are done once
on a host, however often trainers are started there, and what was imported is in memory once.

The socket stays open for as long as the agent lives, and its end ends the process: no trainer outlives its agent. While
it trains, it hears signals:

    SIGTERM   stop: an agreed save, then the exit code "saved"; before the first step it ends at once
    SIGUSR1   save, and go on
    SIGUSR2   write the stacks of all threads to the file `stacks`
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field

STOP_SIGNAL = signal.SIGTERM
SAVE_SIGNAL = signal.SIGUSR1
STACKS_SIGNAL = signal.SIGUSR2
_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Orders:
    """One trainer's part in one incarnation.

    `job_file` is the resolved job, `directory` the run directory; `progress` and `stacks` are files on the host's own
    disk. `coordinator` is "host:port" of jax.distributed, which rank 0 serves; it is unused where `num_processes` is 1.
    `fork` and `step` are what the command line asked of the first incarnation. `deadline_seconds` is what is left.
    `committed` is the newest step that the trainers before have saved under this command, None before the first.
    `variables` are to be in the environment before JAX looks for devices.
    """

    job_file: str
    directory: str
    progress: str
    stacks: str
    rank: int
    num_processes: int
    coordinator: str
    incarnation: int
    fork: bool
    step: int | None
    deadline_seconds: float | None
    committed: int | None = None
    variables: dict[str, str] = field(default_factory=dict)

    def dumps(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, line: str) -> "Orders":
        """The inverse of `dumps`."""
        return cls(**json.loads(line))


def wait_for_orders() -> Orders | None:
    """Say that this process is ready, and wait; None when the agent has ended.

    What returns may be a fork of the process that called: until the orders come, nothing may run but this thread.
    """
    while True:
        message, for_successor = _ask()
        if not message:
            return None
        if not for_successor or not _forked():
            break
        os.setsid()
        _take_over(*for_successor)
    for handle in for_successor:
        os.close(handle)
    return Orders.loads(message.decode())


def wait_for_the_agents_end() -> None:
    """Return when there is no agent any more."""
    with suppress(ConnectionError):
        os.read(sys.stdin.fileno(), 1)


def _ask() -> tuple[bytes, list[int]]:
    """What the agent answers to a process that is ready, and the handles that come with it; nothing if it has ended."""
    agent = socket.socket(fileno=sys.stdin.fileno())
    own = os.pidfd_open(os.getpid())
    try:
        socket.send_fds(agent, [str(os.getpid()).encode()], [own])
        return socket.recv_fds(agent, _LIMIT_BYTES, 2)[:2]
    except ConnectionError:
        return b"", []
    finally:
        os.close(own)
        agent.detach()


def _forked() -> bool:
    """Whether this is the new one of two processes; where the kernel refuses there is one, and the agent sees it."""
    try:
        return os.fork() == 0
    except OSError:
        return False


def _take_over(channel: int, log: int) -> None:
    """Put the handles in the place of those that the forking process keeps."""
    for handle, place in ((channel, sys.stdin), (log, sys.stdout), (log, sys.stderr)):
        os.dup2(handle, place.fileno())
    for handle in (channel, log):
        os.close(handle)
