"""The leader's process inside Ray: JSON lines on standard input and output, an actor on every host.

Started by `epoch.py`, which is on the other end of both pipes; the only process of ours, with `ray_worker.py`, that
imports Ray. It decides nothing. The first line it reads says where the head is, and it answers with the cluster's
number, without which no host can join. From then on

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
from ray._common.usage import usage_lib
from ray._private import ray_constants
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # a compiled module with an incomplete stub
from ray.exceptions import RayActorError, RayError, RayTaskError

from shardwise.launcher.ray_node import SESSION, resource_of
from shardwise.launcher.ray_worker import HandActor

_LOOK_AGAIN_SECONDS = 0.02
_AT_ONCE = 64  # requests to one host


class Driver:
    """The connection to the cluster, once host 0 has joined it."""

    def __init__(self, config: dict[str, Any], out: TextIO) -> None:
        self._config, self._out = config, out
        self._client = GcsClient(address=config["gcs"])
        self._actors: dict[int, Any] = {}

    def introduce(self) -> None:
        """Tell the head what `ray start` would: without it no driver and no worker finds its session."""
        self._client.internal_kv_put(b"session_name", SESSION.encode(), True, ray_constants.KV_NAMESPACE_SESSION)
        usage_lib.put_cluster_metadata(self._client, ray_init_cluster=False)
        self.write(cluster=self._client.cluster_id.hex())

    async def connect(self) -> None:
        """Wait for host 0's raylet (ray.init would look for it once a second), and ask for an actor on every host."""
        while not self._own_raylet():  # noqa: ASYNC110  it is the head that knows, and it can only be asked
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        ray.init(
            address=self._config["gcs"],
            _node_ip_address=self._config["address"],
            _temp_dir=self._config["home"],
            log_to_driver=False,
        )
        for host in range(self._config["numHosts"]):
            actor = ray.remote(HandActor).options(
                num_cpus=0, resources={resource_of(host): 1}, max_concurrency=_AT_ONCE
            )
            self._actors[host] = actor.remote()
        await asyncio.gather(*map(self._follow, self._actors))

    async def answer(self, *, id: int, host: int, request: dict[str, Any], timeout: float) -> None:  # noqa: A002, ASYNC109
        """Ask one host, and write what came of it."""
        try:
            reference = self._actors[host].ask.remote(request, timeout)
            # The actor keeps the bound; this one is for a host that is no longer there to keep it.
            self.write(id=id, answer=await asyncio.wait_for(asyncio.wrap_future(reference.future()), timeout + 1))
        except RayTaskError as error:
            self.write(id=id, error=f"{type(error.cause).__name__}: {error.cause}")
        except (RayError, TimeoutError, KeyError) as error:
            self.write(id=id, error=_words(error))

    def write(self, **message: Any) -> None:
        """One line to the leader."""
        print(json.dumps(message), file=self._out, flush=True)

    async def _follow(self, host: int) -> None:
        try:
            await self._actors[host].ready.remote()
            self.write(joined=host)
            await self._actors[host].live.remote()
        except RayError as error:
            self.write(lost=host, reason=_words(error))

    def _own_raylet(self) -> bool:
        nodes = self._client.get_all_node_info(timeout=5).values()
        return any(node.temp_dir == self._config["home"] for node in nodes)


def main() -> None:
    """Until the standard input ends."""
    # Ray prints where it likes: the pipe to the leader is for this module alone.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(_serve(out))


async def _serve(out: TextIO) -> None:
    reader = asyncio.StreamReader(limit=16 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    driver = Driver(json.loads(await reader.readline()), out)
    driver.introduce()
    tasks = {_started(driver.connect())}
    while line := await reader.readline():
        tasks = {task for task in tasks if not task.done()}
        tasks.add(_started(driver.answer(**json.loads(line))))
    os._exit(0)  # Ray's own farewell takes seconds, and the leader ends the head anyway


def _started(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """The work as a task, whose failure ends the driver: the leader reads the last words in its log."""
    task = asyncio.create_task(work)
    task.add_done_callback(_end_on_error)
    return task


def _end_on_error(task: "asyncio.Task[None]") -> None:
    if error := task.exception():
        traceback.print_exception(error)
        os._exit(1)


def _words(error: BaseException) -> str:
    if isinstance(error, RayActorError):
        return "its part of Ray has died"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no answer'}"


if __name__ == "__main__":
    main()
