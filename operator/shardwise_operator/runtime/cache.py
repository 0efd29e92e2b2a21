"""The cache: the objects of all reflectors, for the controller to read.

It lags behind the API server, so a write that was decided by it has a precondition. The objects that it returns are
shared: never change one in place.
"""

import threading

from shardwise_operator.runtime.kinds import Kind, Object, Objects
from shardwise_operator.runtime.reflector import Reflector


class Cache:
    """The objects of all reflectors. A kind may have several, each with its own labels; an object may be in two."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reflectors: dict[Kind, tuple[Reflector, ...]] = {}

    def add(self, reflector: Reflector) -> None:
        """Add the objects of a reflector."""
        with self._lock:
            self._reflectors[reflector.kind] = (*self._of(reflector.kind), reflector)

    def remove(self, reflector: Reflector) -> None:
        """Take the objects of a reflector out."""
        with self._lock:
            self._reflectors[reflector.kind] = tuple(each for each in self._of(reflector.kind) if each is not reflector)

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return the object of this name, None without one; the namespace is empty for a kind without namespaces."""
        found = (reflector.store.get(namespace, name) for reflector in self._of(kind))
        return next((obj for obj in found if obj is not None), None)

    def list(self, kind: Kind, namespace: str | None = None) -> Objects:
        """Return all objects of a kind, or those of one namespace."""
        return _once([obj for reflector in self._of(kind) for obj in reflector.store.list(namespace)])

    def by_owner(self, kind: Kind, namespace: str, owner_uid: str) -> Objects:
        """Return the objects of a kind, of one namespace, whose controller has this UID."""
        return _once([obj for reflector in self._of(kind) for obj in reflector.store.by_owner(namespace, owner_uid)])

    def synced(self, kind: Kind) -> bool:
        """Return whether all that is watched of this kind has been listed at least once."""
        reflectors = self._of(kind)
        return bool(reflectors) and all(reflector.synced for reflector in reflectors)

    def _of(self, kind: Kind) -> tuple[Reflector, ...]:
        return self._reflectors.get(kind, ())


def _once(objects: Objects) -> Objects:
    return list({obj["metadata"]["uid"]: obj for obj in objects}.values())
