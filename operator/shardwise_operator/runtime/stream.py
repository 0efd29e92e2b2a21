"""The events of one watch, as the API server sends them. Another thread may shut it, which ends the reading."""

import json
from collections.abc import Iterator
from contextlib import suppress

from urllib3 import BaseHTTPResponse, HTTPResponse
from urllib3.exceptions import HTTPError

from shardwise_operator.runtime.errors import UnreachableError, error_of
from shardwise_operator.runtime.kinds import Object

_CHUNK_BYTES = 1 << 16


class EventStream:
    """An iterator of `{"type": ADDED | MODIFIED | DELETED | BOOKMARK, "object": ...}`.

    It ends when the server closes the watch in good order.

    Raises:
        GoneError: the server no longer has the version that the watch is at.
        UnreachableError: the connection broke, or was silent for too long.
    """

    def __init__(self, answer: BaseHTTPResponse) -> None:
        self._answer = answer
        self._shut = False

    def __iter__(self) -> Iterator[Object]:
        try:
            for line in self._lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise error_of(event["object"].get("code", 0), event["object"])
                yield event
        except (HTTPError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # or sent no event
            if not self._shut:
                raise UnreachableError(f"a watch broke off: {error!r}") from error
        finally:
            self._answer.close()

    def shut(self) -> None:
        """End the reading, from any thread."""
        self._shut = True
        if isinstance(self._answer, HTTPResponse):
            with suppress(ValueError, RuntimeError, OSError):  # it has ended by itself
                self._answer.shutdown()

    def _lines(self) -> Iterator[bytes]:
        """Yield whole lines; a last one that broke off is no event."""
        rest: list[bytes] = []
        for chunk in self._answer.stream(_CHUNK_BYTES):
            *whole, last = chunk.split(b"\n")
            for line in whole:
                yield b"".join([*rest, line])
                rest.clear()
            rest.append(last)
