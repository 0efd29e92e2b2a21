"""Requests to an agent over a unix socket of its host: one JSON object a line, one answer a line.

Served by `agent.py`; asked by the actor that is the leader's hand on the host, and by the leader itself where there is
only one host. A request that the agent cannot serve is answered with {"error": words}.
"""

import asyncio
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

LINE_LIMIT_BYTES = 4 << 20  # stacks of all threads are the longest answer
_PEER = struct.Struct("3i")  # pid, uid, gid

Request = dict[str, Any]
Answer = dict[str, Any]


class HandError(Exception):
    """A host's agent did not answer, or refused; `host` and `reason` say which and why."""

    def __init__(self, host: int, reason: str) -> None:
        super().__init__(f"host {host}: {reason}")
        self.host, self.reason = host, reason


class Hands(Protocol):
    """How the leader reaches the agents of all hosts, for as long as it lasts."""

    async def ask(self, host: int, request: Request, timeout: float) -> Answer:  # noqa: ASYNC109  a bound for each
        """A host's answer; HandError where there is none within `timeout` seconds."""

    async def ended(self) -> str:
        """Wait until some host can no longer be reached; why."""

    async def close(self) -> None:
        """Give back what it holds."""


async def serve(path: Path, answer: Callable[[Request], Awaitable[Answer]]) -> asyncio.Server:
    """Answer requests at `path` until the server is closed; only processes of the same user are heard."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _peer_uid(writer) == os.getuid():
                while line := await reader.readline():
                    writer.write(json.dumps(await _answered(answer, line)).encode() + b"\n")
                    await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # who asked has gone and wants no answer, or this agent ends
        finally:
            writer.close()

    return await asyncio.start_unix_server(connected, sock=_bound(path), limit=LINE_LIMIT_BYTES)


async def ask(path: Path, request: Request) -> Answer:
    """The answer of the agent at `path`.

    Raises:
        OSError: nobody serves there, or the agent ended meanwhile.

    """
    reader, writer = await asyncio.open_unix_connection(path, limit=LINE_LIMIT_BYTES)
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        await writer.drain()
        line = await reader.readline()
    finally:
        writer.close()
    if not line:
        raise ConnectionResetError(f"{path}: the agent ended before it answered")
    answer: Answer = json.loads(line)
    return answer


class OwnHand:
    """The hand of a leader that is alone: its own agent, asked directly."""

    def __init__(self, answer: Callable[[Request], Awaitable[Answer]]) -> None:
        self._answer = answer

    async def ask(self, host: int, request: Request, timeout: float) -> Answer:  # noqa: ASYNC109  as in Hands
        """The agent's own answer."""
        try:
            async with asyncio.timeout(timeout):
                return await self._answer(request)
        except TimeoutError:
            raise HandError(host, f"no answer to {request['op']} within {timeout} s") from None
        except OSError as error:
            raise HandError(host, str(error)) from error

    async def ended(self) -> str:
        """Never: the agent and the leader are one process."""
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        """Nothing is held."""


async def _answered(answer: Callable[[Request], Awaitable[Answer]], line: bytes) -> Answer:
    try:
        return await answer(json.loads(line))
    except (ValueError, KeyError, TypeError, OSError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _bound(path: Path) -> socket.socket:
    """A socket at `path` for this user alone, in the place of a predecessor's."""
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(path))
    path.chmod(0o600)
    return bound


def _peer_uid(writer: asyncio.StreamWriter) -> int:
    connection = writer.get_extra_info("socket")
    uid: int = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1]
    return uid
