"""Requests to an agent over a unix socket of its host: one line of JSON each, and a line as the answer.

The actor on each host (`worker.py`) asks; with only one host the leader calls its own agent as a function. An answer
begins with "=", and with "!" where the agent refuses the request: then its reason follows.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

from shardwise.protocol.message import Message
from shardwise.protocol.requests import REQUEST, Request

LINE_LIMIT_BYTES = 4 << 20  # stacks of all threads are the longest answer
_PEER = struct.Struct("3i")  # pid, uid, gid

_ANSWER, _REFUSAL = b"=", b"!"

Answering = Callable[[Request], Awaitable[Message]]


class CallError(Exception):
    """A host's agent did not answer or refused: `host` is which one, `reason` the message for a person."""

    def __init__(self, host: int, reason: str) -> None:
        super().__init__(f"host {host}: {reason}")
        self.host, self.reason = host, reason


class RefusedError(Exception):
    """An agent refuses a request; the message is its reason."""


async def serve(path: Path, answer: Answering) -> asyncio.Server:
    """Answer requests at `path` until the server is closed. Processes of other users get no answer."""

    async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _peer_uid(writer) == os.getuid():
                while line := await reader.readline():
                    writer.write(await _answer_line(answer, line) + b"\n")
                    await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # the caller has gone and wants no answer, or this agent ends
        finally:
            writer.close()

    return await asyncio.start_unix_server(serve_connection, sock=_bound(path), limit=LINE_LIMIT_BYTES)


async def ask(path: Path, request: str) -> str:
    """Return the answer of the agent at `path`, as JSON, to a request as JSON.

    Raises:
        RefusedError: the agent refuses the request.
        OSError: no agent serves there, or it ended before it answered.

    """
    reader, writer = await asyncio.open_unix_connection(path, limit=LINE_LIMIT_BYTES)
    try:
        writer.write(request.encode() + b"\n")
        await writer.drain()
        line = await reader.readline()
    finally:
        writer.close()
    if not line:
        raise ConnectionResetError(f"{path}: the agent ended before it answered")
    text = line[1:].decode().rstrip("\n")
    if line.startswith(_REFUSAL):
        raise RefusedError(text)
    return text


async def _answer_line(answer: Answering, line: bytes) -> bytes:
    try:
        return _ANSWER + (await answer(REQUEST.validate_json(line))).model_dump_json().encode()
    except (ValueError, OSError) as error:
        return _REFUSAL + " ".join(f"{type(error).__name__}: {error}".split()).encode()


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
