"""The leader's side of Ray for one epoch: the head, the driver process, and through it every host's agent.

An epoch is one life of Ray. It begins with a new head at a new port, and it is over as soon as any part of it dies:
nothing is repaired, a new epoch is opened. The hosts join it with `ray_node.py`. It does not import Ray, and knows
nothing of trainers: when Ray dies, they go on.

    epoch = await Epoch.open(place, number=3, num_hosts=2)
    (every agent: RayNode.join(place, epoch=3, address=epoch.address, socket=...))
    await epoch.all_joined(timeout=30)
    answer = await epoch.ask(1, {"op": "stacks"}, timeout=5)
"""

import asyncio
import contextlib
import itertools
import json
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

from shardwise.launcher import processes
from shardwise.launcher.hand import Answer, HandError, Request
from shardwise.launcher.ray_node import (
    SESSION,
    RayAddress,
    RayPlace,
    environment,
    folder_of,
    how,
    last_error,
    node_part,
    ray_file,
    remove,
    session_folder,
)

_LINE_LIMIT_BYTES = 16 << 20
_OPEN_WITHIN_SECONDS = 60.0
_LOOK_AGAIN_SECONDS = 0.01
_BEYOND_SECONDS = 2.0  # how much longer than the driver the leader waits: the driver's words say more


class EpochError(RuntimeError):
    """Ray could not be started, or not on every host; the words say what and where."""


class Epoch:
    """One life of Ray, open from `open` to `close`. `joined` are the hosts whose actor answers."""

    def __init__(self, place: RayPlace, number: int, num_hosts: int) -> None:
        """`open` makes one."""
        self._place, self._number, self._num_hosts, self._part = place, number, num_hosts, f"head-{number}"
        self.joined: set[int] = set()
        self._changed = asyncio.Condition()
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._numbers = itertools.count()
        self._heard: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, place: RayPlace, *, number: int, num_hosts: int) -> "Epoch":
        """Start the head and the driver on this host; hosts can join from then on.

        Raises:
            EpochError: the head or the driver did not start. Nothing is left of them.

        """
        epoch = cls(place, number, num_hosts)
        try:
            async with asyncio.timeout(_OPEN_WITHIN_SECONDS):
                await epoch._start()
        except TimeoutError:
            await epoch.close()
            raise EpochError(f"Ray's head did not start within {_OPEN_WITHIN_SECONDS:.0f} s") from None
        except BaseException:
            await epoch.close()
            raise
        return epoch

    @property
    def address(self) -> str:
        """What a host needs to join."""
        return str(self._address)

    async def all_joined(self, timeout: float) -> None:  # noqa: ASYNC109  the leader's bound, said in the error
        """Wait until every host's actor answers.

        Raises:
            EpochError: `timeout` seconds went by, or Ray was lost; says which hosts are missing.

        """
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(lambda: self._lost.done() or len(self.joined) == self._num_hosts)
        except TimeoutError:
            raise EpochError(f"{self._missing()} did not join Ray within {timeout:g} s") from None
        if self._lost.done():
            raise EpochError(self._lost.result())

    async def ask(self, host: int, request: Request, timeout: float) -> Answer:  # noqa: ASYNC109  a bound for each
        """The answer of a host's agent.

        Raises:
            HandError: there was none within `timeout` seconds, or the host cannot be reached.

        """
        if self._lost.done():
            raise HandError(host, self._lost.result())
        number = next(self._numbers)
        heard: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._heard[number] = heard
        try:
            await self._tell(id=number, host=host, request=request, timeout=timeout)
            message = await asyncio.wait_for(heard, timeout + _BEYOND_SECONDS)
        except TimeoutError:
            raise HandError(host, f"no answer within {timeout:g} s") from None
        except ConnectionError as error:
            raise HandError(host, "Ray's driver has ended") from error
        finally:
            del self._heard[number]
        if "error" in message:
            raise HandError(host, message["error"])
        answer: Answer = message["answer"]
        return answer

    async def ended(self) -> str:
        """Wait until Ray is lost: the head, the driver or a host's part of it has died; which, and how."""
        return await asyncio.shield(self._lost)

    async def close(self) -> None:
        """End the head and the driver at once, and remove their files. Closing again does nothing."""
        await self._lose("the epoch was closed")
        await remove(self._place, self._part)
        await asyncio.gather(*self._tasks)

    async def _start(self) -> None:
        self._session.joinpath("logs").mkdir(parents=True)
        node_id = secrets.token_hex(28)
        driver = await self._start_driver()
        head = await self._start_head(node_id)
        self._tasks = [
            asyncio.create_task(self._watch("Ray's head", head, self._session / "logs" / "gcs.err")),
            asyncio.create_task(self._watch("Ray's driver", driver, self._driver_log)),
        ]
        gcs = f"{self._place.address}:{await self._port(node_id)}"
        self._address = RayAddress(gcs=gcs, cluster=await self._introduced(gcs))
        self._tasks.append(asyncio.create_task(self._listen()))

    async def _introduced(self, gcs: str) -> str:
        """Tell the driver where the head is; the number that the head has given the cluster."""
        home = str(folder_of(self._place, node_part(self._place.host, self._number)))
        with contextlib.suppress(ConnectionError):  # it has ended: then it does not answer either
            await self._tell(gcs=gcs, address=self._place.address, home=home, numHosts=self._num_hosts)
        line = await self._output.readline()
        if not line:
            raise EpochError(await self.ended())
        cluster: str = json.loads(line)["cluster"]
        return cluster

    async def _start_driver(self) -> asyncio.subprocess.Process:
        with self._driver_log.open("wb") as log:
            driver = await processes.start(
                sys.executable,
                "-m",
                "shardwise.launcher.ray_driver",
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
        """The names of the flags are Ray's."""
        logs = self._session / "logs"
        flags = {
            "node-ip-address": self._place.address,
            "gcs_server_port": 0,
            "node-id": node_id,
            "session-name": SESSION,
            "session-dir": self._session,
            "log_dir": logs,
            "stdout_filepath": logs / "gcs.out",
            "stderr_filepath": logs / "gcs.err",
            "config_list": "e30=",  # {}
            "metrics-agent-port": -1,
        }
        return await processes.start(
            str(ray_file("core", "src", "ray", "gcs", "gcs_server")),
            *(f"--{name}={value}" for name, value in flags.items()),
            environment=environment(self._place, self._part),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @property
    def _session(self) -> Path:
        return session_folder(self._place, self._part)

    @property
    def _driver_log(self) -> Path:
        return self._session / "logs" / "driver.log"

    async def _port(self, node_id: str) -> int:
        """The port that the head was given by the kernel: it says so in a file, and nowhere else."""
        path = self._session / f"gcs_server_port_{node_id}"
        while not self._lost.done():
            with contextlib.suppress(FileNotFoundError, ValueError):  # not there, or there and still empty
                return int(path.read_text(encoding="utf-8"))
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        raise EpochError(self._lost.result())

    async def _watch(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        code = await process.wait()
        await self._lose(f"{name} ended {how(code)}{last_error(log)}")

    async def _listen(self) -> None:
        while line := await self._output.readline():
            await self._hear(json.loads(line))

    async def _hear(self, message: dict[str, Any]) -> None:
        if "joined" in message:
            async with self._changed:
                self.joined.add(message["joined"])
                self._changed.notify_all()
        elif "lost" in message:
            await self._lose(f"host {message['lost']}: {message['reason']}")
        elif (heard := self._heard.get(message["id"])) and not heard.done():
            heard.set_result(message)

    async def _lose(self, reason: str) -> None:
        """From here on nothing is asked of this epoch; what was being asked is answered with the reason."""
        if not self._lost.done():
            self._lost.set_result(reason)
        for heard in self._heard.values():
            if not heard.done():
                heard.set_result({"error": reason})
        async with self._changed:
            self._changed.notify_all()

    def _missing(self) -> str:
        missing = [str(host) for host in range(self._num_hosts) if host not in self.joined]
        return f"host {missing[0]}" if len(missing) == 1 else f"hosts {', '.join(missing)}"

    async def _tell(self, **message: Any) -> None:
        self._input.write(json.dumps(message).encode() + b"\n")
        await self._input.drain()
