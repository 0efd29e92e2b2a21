"""The leader's side of Ray for one session: the head, the driver process, and through it every host's agent.

A session is one life of Ray. It begins with a new head at a new port, and it is over as soon as any part of it dies:
nothing is repaired, a new session is opened instead. The hosts join it with `node.py`. This module does not import Ray,
and knows nothing of trainers: they are not Ray's children, and run on when Ray dies.

    session = await RaySession.open(place, number=3, num_hosts=2)
    (every agent: RayNode.join(place, session=3, address=session.address, socket=...))
    await session.all_joined(timeout=30)
    answer = await session.ask(1, ReadStacks().model_dump_json(), timeout=5)
"""

import asyncio
import contextlib
import itertools
import json
import secrets
import subprocess
from pathlib import Path
from typing import Any, cast

from shardwise.launcher.ray import private
from shardwise.launcher.ray.node import (
    RayPlace,
    describe_exit,
    environment,
    folder_of,
    last_error,
    node_part,
    remove,
)
from shardwise.launcher.ray.rpc import CallError
from shardwise.launcher.system import processes
from shardwise.launcher.system.log_bound import bounded

_LINE_LIMIT_BYTES = 16 << 20
_OPEN_WITHIN_SECONDS = 60.0
_LOOK_AGAIN_SECONDS = 0.01
_MARGIN_SECONDS = 2.0  # how much longer than the driver the leader waits: the driver's error says more


class RaySessionError(RuntimeError):
    """Ray could not be started, or not on every host; the message says what and where."""


class RaySession:
    """One life of Ray, from `open` to `close`.

    `joined` are the hosts whose actor answers; `address` is what a host needs to know in order to join: where the head
    is, and the id that it has given the cluster, as "host:port/cluster".
    """

    def __init__(self, place: RayPlace, number: int, num_hosts: int) -> None:
        """Start nothing; use `open`."""
        self._place, self._number, self._num_hosts = place, number, num_hosts
        self._part = f"head-{number}"
        self._home = folder_of(place, self._part)
        self._logs = private.session_folder(self._home) / "logs"
        self._driver_log = self._logs / "driver.log"
        self.joined: set[int] = set()
        self.address = ""
        self._changed = asyncio.Condition()
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # the reason
        self._ids = itertools.count()
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}  # requests without an answer yet, by id
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, place: RayPlace, *, number: int, num_hosts: int) -> "RaySession":
        """Start the head and the driver on this host. When it returns, hosts can join.

        Raises:
            RaySessionError: the head or the driver did not start. Nothing of them is left running.

        """
        session = cls(place, number, num_hosts)
        try:
            async with asyncio.timeout(_OPEN_WITHIN_SECONDS):
                await session._start()
        except TimeoutError:
            await session.close()
            raise RaySessionError(f"Ray's head did not start within {_OPEN_WITHIN_SECONDS:.0f} s") from None
        except BaseException:
            await session.close()
            raise
        return session

    async def all_joined(self, timeout: float) -> None:  # noqa: ASYNC109  the leader's bound, named in the error
        """Wait until every host's actor answers.

        Raises:
            RaySessionError: `timeout` seconds went by, or Ray was lost. The message names the missing hosts.

        """
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(lambda: self._lost.done() or len(self.joined) == self._num_hosts)
        except TimeoutError:
            raise RaySessionError(f"{self._missing()} did not join Ray within {timeout:g} s") from None
        if self._lost.done():
            raise RaySessionError(self._lost.result())

    async def ask(self, host: int, request: str, timeout: float) -> str:  # noqa: ASYNC109  a bound for each
        """Return the answer of a host's agent, as JSON, to a request as JSON.

        Raises:
            CallError: there was none within `timeout` seconds, or the host cannot be reached.

        """
        if self._lost.done():
            raise CallError(host, self._lost.result())
        id_ = next(self._ids)
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[id_] = answered  # before it is sent, so that the answer cannot come too early
        try:
            await self._send(id=id_, host=host, request=request, timeout=timeout)
            message = await asyncio.wait_for(answered, timeout + _MARGIN_SECONDS)
        except TimeoutError:
            raise CallError(host, f"no answer within {timeout:g} s") from None
        except ConnectionError as error:
            raise CallError(host, "Ray's driver has ended") from error
        finally:
            del self._pending[id_]
        if "error" in message:
            raise CallError(host, message["error"])
        answer: str = message["answer"]
        return answer

    async def ended(self) -> str:
        """Wait until the head, the driver or a host's part of Ray has died; return which one, and how."""
        return await asyncio.shield(self._lost)  # shielded, or a caller that is cancelled would cancel it for all

    async def close(self) -> None:
        """End the head and the driver at once, and remove their files. Closing again does nothing."""
        # First of all, so that the deaths which follow are not taken for the reason why the session is lost.
        await self._lose("the session was closed")
        await remove(self._place, self._part)
        await asyncio.gather(*self._tasks)

    async def _start(self) -> None:
        self._logs.mkdir(parents=True)
        node_id = secrets.token_hex(28)
        # The driver takes longest to start, because it imports Ray: so it goes first, and learns the head's port later.
        driver = await self._start_driver()
        head = await self._start_head(node_id)
        self._tasks = [
            asyncio.create_task(self._watch("Ray's head", head, self._logs / "gcs.err")),
            asyncio.create_task(self._watch_driver(driver)),
        ]
        gcs = f"{self._place.address}:{await self._port(node_id)}"
        self.address = f"{gcs}/{await self._register(gcs)}"
        self._tasks.append(asyncio.create_task(self._receive()))

    async def _register(self, gcs: str) -> str:
        """Tell the driver the head's address; return the id of the cluster, which the driver asks the head for."""
        home = str(folder_of(self._place, node_part(self._place.host, self._number)))
        with contextlib.suppress(ConnectionError):  # the driver has ended: then no line comes either
            await self._send(gcs=gcs, address=self._place.address, home=home, numHosts=self._num_hosts)
        line = await self._output.readline()
        if not line:
            raise RaySessionError(await self.ended())
        cluster: str = json.loads(line)["cluster"]
        return cluster

    async def _start_driver(self) -> asyncio.subprocess.Process:
        with self._driver_log.open("ab") as log:
            driver = await processes.start(
                *processes.own_module("shardwise.launcher.ray.driver"),
                environment=environment(self._place, self._part),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                limit=_LINE_LIMIT_BYTES,
            )
        self._input = cast("asyncio.StreamWriter", driver.stdin)
        self._output = cast("asyncio.StreamReader", driver.stdout)
        return driver

    async def _start_head(self, node_id: str) -> asyncio.subprocess.Process:
        return await processes.start(
            *private.gcs_server_command(self._home, ip=self._place.address, node_id=node_id),
            environment=environment(self._place, self._part),
        )

    async def _port(self, node_id: str) -> int:
        """Wait for the port that the kernel has given the head, which it writes to a file and nowhere else."""
        path = private.port_file(self._home, node_id)
        while not self._lost.done():
            with contextlib.suppress(FileNotFoundError, ValueError):  # not there yet, or still empty
                return int(path.read_text(encoding="utf-8"))
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        raise RaySessionError(self._lost.result())

    async def _watch(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        code = await process.wait()
        await self._lose(f"{name} ended {describe_exit(code)}{last_error(log)}")

    async def _watch_driver(self, driver: asyncio.subprocess.Process) -> None:
        async with bounded(self._driver_log):
            await self._watch("Ray's driver", driver, self._driver_log)

    async def _receive(self) -> None:
        while line := await self._output.readline():
            message = json.loads(line)
            if "joined" in message:
                async with self._changed:
                    self.joined.add(message["joined"])
                    self._changed.notify_all()
            elif "lost" in message:
                await self._lose(f"host {message['lost']}: {message['reason']}")
            # A request that has timed out is no longer pending, and its answer may still come.
            elif (answered := self._pending.get(message["id"])) and not answered.done():
                answered.set_result(message)

    async def _lose(self, reason: str) -> None:
        """End the session: nothing is asked through it any more, and pending requests fail with the reason."""
        if not self._lost.done():  # the first death is the reason, the others mostly follow from it
            self._lost.set_result(reason)
        for answered in self._pending.values():
            if not answered.done():
                answered.set_result({"error": reason})
        async with self._changed:
            self._changed.notify_all()

    def _missing(self) -> str:
        missing = [str(host) for host in range(self._num_hosts) if host not in self.joined]
        return f"host {missing[0]}" if len(missing) == 1 else f"hosts {', '.join(missing)}"

    async def _send(self, **message: Any) -> None:
        self._input.write(json.dumps(message).encode() + b"\n")
        await self._input.drain()
