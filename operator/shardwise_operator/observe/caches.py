"""What observing reads: the caches, and the API server itself if a cache must not be trusted."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from shardwise_operator.runtime.kinds import Kind, Object
from shardwise_operator.runtime.transport import Page


class Caches(Protocol):
    """The part of the runtime's cache that is read."""

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return one object; None if the cache has none."""

    def by_owner(self, kind: Kind, namespace: str, owner_uid: str) -> Sequence[Object]:
        """Return the objects of a kind that one object controls, which lies in the same namespace."""

    def list(self, kind: Kind) -> Sequence[Object]:
        """Return every object of a kind."""


class Reader(Protocol):
    """The requests to the API server that only read."""

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Return one object; NotFoundError."""

    def pages(self, kind: Kind, namespace: str = "", *, labels: str = "") -> Iterator[Page]:
        """Yield the objects of a kind that a label selector selects, in pages."""
