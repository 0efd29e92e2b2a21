"""One HTTP request over a connection of its own, bounded as a whole: in its time, and in what comes back.

The operator, the followers and the commands ask host 0. Any process may answer there, and a socket's own timeout is
that of one packet: an answer that drips would be waited for without an end.
"""

import http.client
import io
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message

_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int
    headers: Message
    body: bytes


def exchange(
    address: tuple[str, int],
    method: str,
    path: str,
    *,
    headers: Mapping[str, str],
    body: bytes = b"",
    seconds: float,
    most_bytes: int,
) -> Answer:
    """Return the answer, of any status; OSError or HTTPException if none is whole within the bounds."""
    sent = {"Host": address[0], "Connection": "close", "Content-Length": str(len(body)), **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
    received = _Received(_all(address, "\r\n".join(lines).encode() + body, seconds, most_bytes))
    answer = http.client.HTTPResponse(received, method=method)  # type: ignore[arg-type]
    answer.begin()
    return Answer(answer.status, answer.headers, answer.read())


def _all(address: tuple[str, int], request: bytes, seconds: float, most_bytes: int) -> bytes:
    """Return all that comes back, to the end of the connection."""
    ends_at = time.monotonic() + seconds
    received = bytearray()
    try:
        with socket.create_connection(address, timeout=seconds) as connection:
            connection.sendall(request)
            while chunk := connection.recv(_CHUNK_BYTES):
                received += chunk
                if len(received) > most_bytes:
                    raise OSError(f"an answer of more than {most_bytes} bytes")
                connection.settimeout(max(0.001, ends_at - time.monotonic()))
    except TimeoutError as error:
        raise TimeoutError(f"no whole answer within {seconds:g} s") from error
    return bytes(received)


class _Received:
    """What was received, as the socket from which the standard library reads an answer."""

    def __init__(self, received: bytes) -> None:
        self._received = received

    def makefile(self, _mode: str) -> io.BytesIO:
        """Return it as a file."""
        return io.BytesIO(self._received)
