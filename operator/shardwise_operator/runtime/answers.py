"""What the API server answers: an object, or the events of a watch, which another thread may shut."""

from collections.abc import Iterator
from typing import Any

import orjson

from shardwise_operator.runtime.connection import BROKEN, Answer
from shardwise_operator.runtime.errors import UnreachableError, error_of
from shardwise_operator.runtime.kinds import Object


def decoded(data: bytes) -> Object:
    """Return the object that an answer is; UnreachableError if it is none."""
    try:
        answer: Any = orjson.loads(data)
    except ValueError as error:
        raise UnreachableError(f"an answer that is not JSON: {data[:200]!r}") from error
    if not isinstance(answer, dict):
        raise UnreachableError(f"an answer that is no object: {data[:200]!r}")
    return answer


def read_metadata(answer: Object) -> Object:
    """Return the metadata without its managedFields, which are often half of an object and of no use here."""
    try:
        return {field: value for field, value in answer["metadata"].items() if field != "managedFields"}
    except (KeyError, AttributeError) as error:
        raise UnreachableError(f"an answer without metadata: {str(answer)[:200]!r}") from error


class EventStream:
    """An iterator of `{"type": ADDED | MODIFIED | DELETED | BOOKMARK, "object": ...}`.

    It ends when the server closes the watch in good order.

    Raises:
        GoneError: the server no longer has the version that the watch is at.
        UnreachableError: the connection broke, or was silent for too long.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._shut = False

    def __iter__(self) -> Iterator[Object]:
        try:
            for line in self._lines():
                event = orjson.loads(line)
                if event["type"] == "ERROR":
                    raise error_of(event["object"].get("code", 0), event["object"])
                yield event
        except (*BROKEN, ValueError, KeyError, TypeError, AttributeError) as error:  # or sent no event
            if not self._shut:
                raise UnreachableError(f"a watch broke off: {error!r}") from error
        finally:
            self._answer.close()

    def shut(self) -> None:
        """End the reading, from any thread."""
        self._shut = True
        self._answer.shut()

    def _lines(self) -> Iterator[bytes]:
        """Yield whole lines; a last one that broke off is no event."""
        rest: list[bytes] = []
        for chunk in self._answer.chunks():
            *whole, last = chunk.split(b"\n")
            for line in whole:
                yield b"".join([*rest, line])
                rest.clear()
            rest.append(last)
