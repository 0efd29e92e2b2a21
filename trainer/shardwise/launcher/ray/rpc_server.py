"""The agent's end of `rpc.py`: answers to requests over a unix socket, for processes of its own user alone."""

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

from shardwise.launcher.ray.rpc import ANSWER, LINE_LIMIT_BYTES, REFUSAL
from shardwise.protocol.message import Message
from shardwise.protocol.requests import REQUEST, Request

_PEER = struct.Struct("3i")  # pid, uid, gid

Answering = Callable[[Request], Awaitable[Message]]


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


async def _answer_line(answer: Answering, line: bytes) -> bytes:
    try:
        return ANSWER + (await answer(REQUEST.validate_json(line))).model_dump_json().encode()
    except (ValueError, OSError) as error:
        return REFUSAL + " ".join(f"{type(error).__name__}: {error}".split()).encode()


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
