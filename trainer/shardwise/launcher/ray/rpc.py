"""Requests to an agent over a unix socket of its host: one line of JSON each, and a line as the answer.

The actor on each host (`worker.py`) asks; with only one host the leader calls its own agent as a function. An answer
begins with "=", and with "!" where the agent refuses the request: then its reason follows. `rpc_server.py` answers; it
alone knows the types of requests, which would take a worker a tenth of its start to import.
"""

import asyncio
from pathlib import Path

LINE_LIMIT_BYTES = 4 << 20  # stacks of all threads are the longest answer
ANSWER, REFUSAL = b"=", b"!"


class CallError(Exception):
    """A host's agent did not answer or refused: `host` is which one, `reason` the message for a person."""

    def __init__(self, host: int, reason: str) -> None:
        super().__init__(f"host {host}: {reason}")
        self.host, self.reason = host, reason


class RefusedError(Exception):
    """An agent refuses a request; the message is its reason."""


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
    if line.startswith(REFUSAL):
        raise RefusedError(text)
    return text
