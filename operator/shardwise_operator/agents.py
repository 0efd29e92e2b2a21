"""Speaks to the agents of host 0: how they stand, and requests to save or to stop. Every call is bounded as a whole.

Called by `poll.py` and `asks.py`. What answers is a pod, which anybody may have taken over: an answer has a time and a
size, and is checked for its shape (`told.py`) before it is believed.
"""

import http.client
import io
import socket
import time
from dataclasses import dataclass
from typing import Any

from shardwise.job.pods import AGENT_PORT
from shardwise_operator.told import read_told

_TIMEOUT_SECONDS = 2.0
_MAX_ANSWER_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16


class AgentError(Exception):
    """The agent did not answer, or not as an agent does."""


@dataclass(frozen=True)
class Target:
    """Host 0 of a job: the UID of its pod, the pod's address, and the token that opens its status."""

    pod: str
    address: str
    token: str


class Agents:
    """A client for many agents, safe in threads."""

    def __init__(self, port: int = AGENT_PORT) -> None:
        """Every agent listens on `port`."""
        self._port = port

    def status(self, target: Target) -> dict[str, Any]:
        """The run's `/status`; AgentError where there is no such answer."""
        answer = self._ask("GET", target, "/status")
        try:
            return read_told(answer)
        except ValueError as error:
            raise AgentError(f"{target.address}: an answer that is no status") from error

    def save(self, target: Target) -> None:
        """Ask the run to save and go on; AgentError where nobody takes it."""
        self._ask("POST", target, "/save")

    def stop(self, target: Target) -> None:
        """Ask the run to save and stop; AgentError where nobody takes it."""
        self._ask("POST", target, "/stop")

    def _ask(self, method: str, target: Target, path: str) -> bytes:
        """One request over a connection of its own: that many are not kept open, and a pool costs twice the time."""
        request = (
            f"{method} {path} HTTP/1.1\r\nHost: {target.address}\r\nAuthorization: Bearer {target.token}\r\n"
            "Connection: close\r\nContent-Length: 0\r\n\r\n"
        )
        try:
            received = _Received(self._exchange(target, request.encode()))
            answer = http.client.HTTPResponse(received, method=method)  # type: ignore[arg-type]
            answer.begin()
            body = answer.read()
        except TimeoutError as error:
            raise AgentError(f"{target.address}: no whole answer within {_TIMEOUT_SECONDS:g} s") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise AgentError(f"{target.address}: {error}") from error
        if answer.status >= 300:
            raise AgentError(f"{target.address}: HTTP {answer.status}")
        return body

    def _exchange(self, target: Target, request: bytes) -> bytes:
        """All that comes back, to the end of the connection.

        A socket's own timeout is that of one packet, so that what drips would be waited for without an end.
        """
        ends_at = time.monotonic() + _TIMEOUT_SECONDS
        received = bytearray()
        with socket.create_connection((target.address, self._port), timeout=_TIMEOUT_SECONDS) as connection:
            connection.sendall(request)
            while True:
                left = ends_at - time.monotonic()
                if left <= 0.0:
                    raise TimeoutError
                connection.settimeout(left)
                chunk = connection.recv(_CHUNK_BYTES)
                if not chunk:
                    return bytes(received)
                received += chunk
                if len(received) > _MAX_ANSWER_BYTES:
                    raise OSError(f"an answer of more than {_MAX_ANSWER_BYTES} bytes")


class _Received:
    """What was received, in the place of the socket from which the standard library reads an answer."""

    def __init__(self, received: bytes) -> None:
        self._received = received

    def makefile(self, _mode: str) -> io.BytesIO:
        """Read it from its beginning."""
        return io.BytesIO(self._received)
