"""Run functions as tasks of Ray: on the cores of this machine, or on all hosts of a cluster that is there.

This process is Ray's driver. A task whose worker is killed, or whose host is lost, is given to another one.
"""

import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import psutil

from shardwise.launcher.ray import private
from shardwise.protocol.errors import PeerError, ShardwiseError, UsageError

Task = TypeVar("Task")
Result = TypeVar("Result")

_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 0.5
_ONE_CORE = {"TOKENIZERS_PARALLELISM": "false"}  # a task has one core; the others are other tasks'


class RayTasks:
    """Where tasks run: `num_workers` of them at once. If Ray is `our_own`, none of it outlives this process."""

    def __init__(self, num_workers: int, *, our_own: bool) -> None:
        self.num_workers, self._our_own = num_workers, our_own

    def __call__(self, act: Callable[[Task], Result], tasks: Sequence[Task], /) -> Iterator[Result]:
        """Yield what `act` returns for each task, as it comes. Raise the first error of one.

        Raises:
            PeerError: workers were lost again and again.

        """
        import ray  # noqa: PLC0415  only a command that uses Ray can afford it

        remote = ray.remote(num_cpus=1)(_guarded)
        coming = iter(tasks)
        running = {remote.remote(act, task, self._our_own) for task in islice(coming, self.num_workers)}
        try:
            while running:
                (ended, *_), _ = ray.wait(list(running), num_returns=1)
                running.remove(ended)
                running |= {remote.remote(act, task, self._our_own) for task in islice(coming, 1)}
                result, error = ray.get(ended)
                if error is not None:
                    raise error
                yield result
        except ray.exceptions.RayTaskError:
            raise  # a mistake of ours in the task, with its traceback
        except ray.exceptions.RayError as error:
            raise PeerError(
                f"a task was given up: {error}. Expected workers with memory for it; give the same command again: it "
                "goes on with what is there."
            ) from error


@contextmanager
def tasks_here(num_workers: int, home: Path) -> Iterator[RayTasks]:
    """Start Ray on this machine with so many workers, and end it with the block; `home` has a short path."""
    private.start_alone(home=home, num_workers=num_workers, variables_of_workers=_ONE_CORE)
    with _ended_by_us(), _guarded_by_a_shell():
        yield RayTasks(num_workers, our_own=True)


@contextmanager
def tasks_of_cluster(address: str, num_workers: int | None) -> Iterator[RayTasks]:
    """Join a cluster; take as many of its cores as there are, or `num_workers`.

    Raises:
        UsageError: no cluster answers there.

    """
    host, _, port = address.rpartition(":")
    try:
        # Ray itself would try for minutes.
        socket.create_connection((host, int(port)), _ANSWER_SECONDS).close()
        import ray  # noqa: PLC0415  only a command that uses Ray can afford it

        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, runtime_env={"env_vars": _ONE_CORE})
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"--ray-address {address!r}: {error}; expected the address of the head of a Ray cluster that runs, such as "
            "10.0.0.7:6379, with its token in RAY_AUTH_TOKEN if it has one (its hosts need shardwise and the paths of "
            "the data), or leave it out for this machine"
        ) from error
    with _ended_by_us():
        cores = ray.cluster_resources().get("CPU", 1)  # type: ignore[no-untyped-call]  # Ray has no types here
        yield RayTasks(num_workers or int(cores), our_own=False)


@cache
def _end_with_raylet() -> None:
    """End this worker once its raylet is gone: Ray would let it finish its task first."""
    raylet = os.getppid()

    def watch() -> None:
        while os.getppid() == raylet:
            time.sleep(_LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="raylet", daemon=True).start()


@contextmanager
def _guarded_by_a_shell() -> Iterator[None]:
    """End Ray's processes if this one is killed: its two agents would try for a minute to reach the head.

    The shell reads a pipe that only this process can write to, and so until this process is gone. Workers that have
    been started since are found by the raylet that their environment names. The raylet itself may be gone by then: Ray
    has the kernel end it with its driver, and a worker without a task would look for it as long as the agents.
    """
    numbers = [str(child.pid) for child in psutil.Process().children(recursive=True)]
    of_them = f"{private.RAYLET_OF_WORKER}=({'|'.join(numbers)})"
    workers = f"$(grep -lzxE '{of_them}' /proc/[0-9]*/environ | cut -d / -f 3)"
    command = ["/bin/sh", "-c", f"read -r line; kill -KILL {' '.join(numbers)} {workers} 2>/dev/null"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as shell:  # noqa: S603  our own numbers
        try:
            yield
        finally:
            shell.kill()


@contextmanager
def _ended_by_us() -> Iterator[None]:
    import ray  # noqa: PLC0415  only a command that uses Ray can afford it

    try:
        yield
    finally:
        ray.shutdown()


def _guarded(act: Callable[[Any], Any], task: Any, our_own: bool) -> tuple[Any, ShardwiseError | None]:  # noqa: FBT001  Ray's way
    """Return an error of ours as it is: what a task raises, Ray wraps."""
    if our_own:
        _end_with_raylet()
    try:
        return act(task), None
    except ShardwiseError as error:
        return None, error
