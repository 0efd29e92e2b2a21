"""One host's part of a Ray session: a raylet, and below it the worker in which the actor lives.

Every agent has one, host 0's too; the session's head belongs to the leader (`session.py`). This module does not import
Ray: it starts Ray's own program, with the command that `private.py` makes.
"""

import asyncio
import contextlib
import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from shardwise.launcher.ray import private
from shardwise.launcher.system import processes

RAY_VARIABLE = "SHARDWISE_RAY"  # of every Ray process: the part of a session that it belongs to
SOCKET_VARIABLE = "SHARDWISE_AGENT_SOCKET"

_MANY_SESSIONS = 9999  # more than any run opens
_MAX_LOG_CHARACTERS = 300  # of Ray's logs in an error of ours
_ERROR = re.compile(r"\[[^]]* [EC] [^]]*\] (\(\w+\) )?")


@dataclass(frozen=True, kw_only=True)
class RayPlace:
    """What a part of Ray must know of the run: whose mark it carries, where it may listen and where it may write.

    `address` is the ip to listen on. 127.0.0.1 keeps Ray off every other interface; with any other ip Ray listens on
    all of them, and only the token keeps strangers out. `scratch` is on the host's own disk.
    """

    directory: Path
    host: int
    address: str
    scratch: Path
    token_file: Path


class RayNode:
    """This host's processes of one session. Made by `join`."""

    def __init__(self, place: RayPlace, part: str, raylet: asyncio.subprocess.Process) -> None:
        self._place, self._part, self._raylet = place, part, raylet

    @classmethod
    async def join(cls, place: RayPlace, *, session: int, address: str, socket: Path) -> "RayNode":
        """Start this host's processes; `address` is the session's, `socket` that of this host's agent.

        Returns at once. The leader sees when the host has joined; `ended` shows that it could not. OSError if nothing
        could be started, and then nothing is left of it.
        """
        part = node_part(place.host, session)
        try:
            return await cls._started(place, part, address=address, socket=socket)
        except OSError:
            await remove(place, part)
            raise

    @classmethod
    async def _started(cls, place: RayPlace, part: str, *, address: str, socket: Path) -> "RayNode":
        for name in ("logs", "sockets"):  # `ray start` would make them, the raylet does not
            session_folder(place, part).joinpath(name).mkdir(parents=True)
        gcs, cluster = address.rsplit("/", 1)
        raylet = await processes.start(
            *private.raylet_command(
                folder_of(place, part),
                ip=place.address,
                gcs=gcs,
                cluster=cluster,
                resource=resource_of(place.host),
                head=place.host == 0,
            ),
            # The worker, and in it the actor, inherits the raylet's environment: so it finds the agent.
            environment={**environment(place, part), SOCKET_VARIABLE: str(socket)},
        )
        return cls(place, part, raylet)

    async def ended(self) -> str:
        """Wait until the raylet has died; return its exit and the last error it logged, as a message."""
        code = await self._raylet.wait()
        log = session_folder(self._place, self._part) / "logs" / "raylet.err"
        return f"Ray on host {self._place.host} ended {describe_exit(code)}{last_error(log)}"

    async def close(self) -> None:
        """End all of its processes at once, and remove their files. Closing again does nothing."""
        await remove(self._place, self._part)
        await self._raylet.wait()


def node_part(host: int, session: int) -> str:
    """Return the name of a host's part of a session."""
    return f"node-{session}-{host}"


def longest_socket(num_hosts: int) -> str:
    """Return the longest path of a unix socket below the scratch folder of a run with so many hosts."""
    return str(private.raylet_socket(Path(node_part(num_hosts - 1, _MANY_SESSIONS))))


def folder_of(place: RayPlace, part: str) -> Path:
    """Return the only folder that a part of Ray writes to. Its path is short, because sockets are in it."""
    return place.scratch / part


def session_folder(place: RayPlace, part: str) -> Path:
    """Return the folder that a part of Ray uses for its session, with its logs and sockets."""
    return private.session_folder(folder_of(place, part))


def environment(place: RayPlace, part: str) -> dict[str, str]:
    """Return the whole environment of one part of Ray: only what Python needs to start is inherited."""
    return {
        **processes.bare_environment(),
        **_marks(place, part),
        **private.variables(folder_of(place, part), ip=place.address, token_file=place.token_file),
    }


async def remove(place: RayPlace, part: str) -> None:
    """End every process of a part of Ray, and remove its files."""
    # By the marks and not by the tree of processes: a worker whose raylet was killed has lost its parent.
    await asyncio.to_thread(processes.end_carrying, _marks(place, part))
    await asyncio.to_thread(shutil.rmtree, folder_of(place, part), ignore_errors=True)


def resource_of(host: int) -> str:
    """Return the name of a resource that only this host has, so that an actor can be placed there."""
    return f"shardwise_host_{host}"


def describe_exit(code: int) -> str:
    """Return an exit code as part of a message."""
    return f"on {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def last_error(log: Path) -> str:
    """Return the last error in the log of one of Ray's programs, or else its last line, after a colon.

    The text is empty if nothing was logged.
    """
    with contextlib.suppress(FileNotFoundError):
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR.match(line)]
        if lines:
            return f": {_ERROR.sub('', (errors or lines)[-1])[:_MAX_LOG_CHARACTERS]}"
    return ""


def _marks(place: RayPlace, part: str) -> dict[str, str]:
    """Return what every process of a part has in its environment, and no other process."""
    return {**processes.mark(place.directory, place.host), RAY_VARIABLE: part}
