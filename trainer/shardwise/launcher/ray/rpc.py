"""Requests to an agent over a unix socket of its host: one JSON object per line, one answer per line.

The actor on each host (`worker.py`) asks; with only one host the leader calls its own agent as a function. A request
that the agent cannot serve is answered with {"error": message}.
"""

import asyncio
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

LINE_LIMIT_BYTES = 4 << 20  # stacks of all threads are the longest answer
_PEER = struct.Struct("3i")  # pid, uid, gid

Request = dict[str, Any]
Answer = dict[str, Any]
Answering = Callable[[Request], Awaitable[Answer]]


class CallError(Exception):
    """A host's agent did not answer or refused: `host` is which one, `reason` the message for a person."""

    def __init__(self, host: int, reason: str) -> None:
        super().__init__(f"host {host}: {reason}")
        self.host, self.reason = host, reason


async def serve(path: Path, answer: Answering) -> asyncio.Server:
    """Answer requests at `path` until the server is closed. Processes of other users get no answer."""

    async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _peer_uid(writer) == os.getuid():
                while line := await reader.readline():
                    writer.write(json.dumps(await _answer_line(answer, line)).encode() + b"\n")
                    await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # the caller has gone and wants no answer, or this agent ends
        finally:
            writer.close()

    return await asyncio.start_unix_server(serve_connection, sock=_bound(path), limit=LINE_LIMIT_BYTES)


async def ask(path: Path, request: Request) -> Answer:
    """Return the answer of the agent at `path`.

    Raises:
        OSError: no agent serves there, or it ended before it answered.

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


async def _answer_line(answer: Answering, line: bytes) -> Answer:
    try:
        return await answer(json.loads(line))
    except (ValueError, KeyError, TypeError, OSError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _bound(path: Path) -> socket.socket:
    """Return a socket bound at `path` for this user alone, in place of a killed predecessor's."""
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(path))
    path.chmod(0o600)
    return bound


def _peer_uid(writer: asyncio.StreamWriter) -> int:
    # The kernel's record of who has connected: SO_PEERCRED in unix(7).
    connection = writer.get_extra_info("socket")
    uid: int = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1]
    return uid
