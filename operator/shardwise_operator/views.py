"""What the observing parts read: the caches, and the API server itself where a cache must not be trusted."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from shardwise_operator.runtime.kinds import Kind, Object
from shardwise_operator.runtime.transport import Page


class Caches(Protocol):
    """What is read of the runtime's cache."""

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object; None where the cache has none."""

    def by_owner(self, kind: Kind, owner_uid: str) -> Sequence[Object]:
        """The objects of a kind that one object controls."""

    def list(self, kind: Kind) -> Sequence[Object]:
        """Every object of a kind."""


class Reader(Protocol):
    """What is asked of the API server."""

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """One object; NotFoundError."""

    def pages(self, kind: Kind, namespace: str = "", *, labels: str = "") -> Iterator[Page]:
        """The objects of a kind that a label selector selects, in pages."""
