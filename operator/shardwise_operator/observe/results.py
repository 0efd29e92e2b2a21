"""What an observer works out of a job, kept as long as it would come out the same again."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from shardwise_operator.runtime.queue import Key

T = TypeVar("T")


class Results(Generic[T]):
    """Results by job, each kept as long as its input is the same."""

    def __init__(self) -> None:
        self._known: dict[Key, tuple[Hashable, T]] = {}

    def get_or_make(self, key: Key, of: Hashable, make: Callable[[], T]) -> T:
        """Return the job's result for the input `of`; if there is none, make it, which may take a request."""
        known = self._known.get(key)
        if known is None or known[0] != of:
            known = self._known[key] = (of, make())
        return known[1]

    def forget(self, key: Key) -> None:
        """Drop the result of a job."""
        self._known.pop(key, None)
