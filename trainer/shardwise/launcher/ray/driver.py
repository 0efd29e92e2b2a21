"""The leader's process inside Ray: JSON lines on standard input and output, an actor on every host.

Started by `session.py`, which is at the other end of both pipes. Only this process and the workers import Ray. It
decides nothing. The first line it reads says where the head is, and it answers with the cluster's id, without which no
host can join. From then on it

    reads    {"id", "host", "request", "timeout"}
    writes   {"id", "answer"} | {"id", "error"} | {"joined": host} | {"lost": host, "reason"}

It ends when its standard input does.
"""

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Coroutine
from typing import Any, TextIO

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from shardwise.launcher.ray import private
from shardwise.launcher.ray.node import resource_of
from shardwise.launcher.ray.worker import AgentProxy
from shardwise.protocol.storage import first_line

_LOOK_AGAIN_SECONDS = 0.02
_MAX_CONCURRENT = 64  # requests to one host


class Driver:
    """The leader's actors, one for each host."""

    def __init__(self, config: dict[str, Any], out: TextIO) -> None:
        self._config, self._out = config, out
        self._head = private.Head(config["gcs"])
        self._actors: dict[int, Any] = {}

    def register(self) -> None:
        """Register the session with the head, and write the cluster's id."""
        self.write(cluster=self._head.register_session())

    async def connect(self) -> None:
        """Join the session once host 0 has, and create an actor on every host."""
        # ray.init needs the raylet of its own host, and would look for it only once a second.
        while not self._head.has_raylet(self._config["home"]):  # noqa: ASYNC110  only the head knows, and is asked
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        private.connect(gcs=self._config["gcs"], ip=self._config["address"], home=self._config["home"])
        for host in range(self._config["numHosts"]):
            # An actor whose host has not joined yet stays pending until that host's resource appears.
            actor = ray.remote(AgentProxy).options(
                num_cpus=0, resources={resource_of(host): 1}, max_concurrency=_MAX_CONCURRENT
            )
            self._actors[host] = actor.remote()
        await asyncio.gather(*map(self._watch, self._actors))

    async def answer(self, *, id: int, host: int, request: str, timeout: float) -> None:  # noqa: A002, ASYNC109
        """Ask one host, and write its answer or the error."""
        try:
            reference = self._actors[host].ask.remote(request, timeout)
            # The actor observes the timeout itself; this one is for a host that is no longer there to do so.
            self.write(id=id, answer=await asyncio.wait_for(asyncio.wrap_future(reference.future()), timeout + 1))
        except RayTaskError as error:
            self.write(id=id, error=f"{type(error.cause).__name__}: {error.cause}")
        except (RayError, TimeoutError, KeyError) as error:
            self.write(id=id, error=_describe(error))

    def write(self, **message: Any) -> None:
        """Write one line to the leader."""
        print(json.dumps(message), file=self._out, flush=True)

    async def _watch(self, host: int) -> None:
        try:
            await self._actors[host].ready.remote()
            self.write(joined=host)
            await self._actors[host].live.remote()  # returns by the actor's death only
        except RayError as error:
            self.write(lost=host, reason=_describe(error))


def main() -> None:
    """Serve the leader until the standard input ends."""
    # Ray prints wherever it likes: keep the pipe to the leader for this module, and send the rest to the log.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(_serve(out))


async def _serve(out: TextIO) -> None:
    reader = asyncio.StreamReader(limit=16 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    driver = Driver(json.loads(await reader.readline()), out)
    driver.register()
    tasks = {_start(driver.connect())}
    while line := await reader.readline():
        # asyncio keeps only weak references to tasks, so those that still run are kept here.
        tasks = {task for task in tasks if not task.done()}
        tasks.add(_start(driver.answer(**json.loads(line))))
    os._exit(0)  # Ray's own shutdown takes seconds, and the leader ends the head anyway


def _start(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """Start a task whose failure ends the driver: the leader then reads the last lines of its log."""
    task = asyncio.create_task(work)
    task.add_done_callback(_end_on_error)
    return task


def _end_on_error(task: "asyncio.Task[None]") -> None:
    if error := task.exception():
        traceback.print_exception(error)
        os._exit(1)


def _describe(error: Exception) -> str:
    if isinstance(error, RayActorError):
        return "its part of Ray has died"
    return f"{type(error).__name__}: {first_line(error) or 'no answer'}"


if __name__ == "__main__":
    main()
