"""The orders of a trainer: one message of its agent on the socket that is the trainer's standard input.

When its imports are done, the process sends its pid and a pidfd there, and waits. The orders may come
with a socket and a log for another process: then it first forks one that waits in its place. So imports are done once
on a host, however often trainers are started there, and what was imported is in memory once.

The socket stays open until the agent ends, and its end ends the process: no trainer outlives its agent. While it
trains, it takes signals:

    SIGTERM   stop: an agreed save, then the exit code "saved"; before the first step it ends at once
    SIGUSR1   save, and go on
    SIGUSR2   write the stacks of all threads to the file `stacks`
"""

import os
import signal
import socket
import sys
from contextlib import suppress

from pydantic import Field

from shardwise.protocol.message import Message

STOP_SIGNAL = signal.SIGTERM
SAVE_SIGNAL = signal.SIGUSR1
STACKS_SIGNAL = signal.SIGUSR2
_LIMIT_BYTES = 1 << 20


class LocalPlace(Message):
    """Where a trainer keeps its local checkpoints, and how those of other hosts fetch them from it.

    `folder` outlives the trainer, but not its host; `address` is the host's ip; `token_file` has the gang's token.
    """

    folder: str
    address: str
    token_file: str


class Orders(Message):
    """One trainer's part in one attempt.

    `job_file` is the resolved job, `directory` the run directory; `progress` and `stacks` are files on the host's own
    disk. `coordinator` is "host:port" of jax.distributed, which rank 0 serves; it is unused if `num_processes` is 1.
    `fork` and `step` are what the command line asked of the first attempt. `deadline_seconds` is the time left.
    `checkpoints` is where an own program keeps its own if that is not below `directory`.
    `committed` is the newest step that the trainers before have saved under this command, None before the first.
    `local` is where the host keeps local checkpoints; an agent of an earlier release has no such place.
    `variables` are to be in the environment before JAX looks for devices.
    """

    job_file: str
    directory: str
    progress: str
    stacks: str
    rank: int
    num_processes: int
    coordinator: str
    attempt: int
    fork: bool
    step: int | None
    deadline_seconds: float | None
    committed: int | None = None
    checkpoints: str | None = None
    local: LocalPlace | None = None
    variables: dict[str, str] = Field(default_factory=dict)


def wait_for_orders() -> Orders | None:
    """Report that this process is ready, and wait for its orders; None if the agent has ended.

    The process that returns may be a fork of the one that called: until the orders come, only this thread may run.
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
    return Orders.model_validate_json(message)


def wait_for_the_agents_end() -> None:
    """Wait until the agent has ended."""
    with suppress(ConnectionError):
        os.read(sys.stdin.fileno(), 1)


def _ask() -> tuple[bytes, list[int]]:
    """Report to the agent; return its answer and the handles that come with it, both empty if it has ended."""
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
    """Fork; return whether this is the new process. If the kernel refuses, there is none, and the agent sees it."""
    try:
        return os.fork() == 0
    except OSError:
        return False


def _take_over(channel: int, log: int) -> None:
    """Replace the standard streams, which the forking process keeps, by these handles."""
    for handle, place in ((channel, sys.stdin), (log, sys.stdout), (log, sys.stderr)):
        os.dup2(handle, place.fileno())
    for handle in (channel, log):
        os.close(handle)
