"""What the reflectors hold, as the controller reads it.

It lags behind the API server; a write that was decided on it carries a precondition. What it hands out is shared: never
change it in place.
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
        """Read from this one too."""
        with self._lock:
            self._reflectors[reflector.kind] = (*self._of(reflector.kind), reflector)

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """The object of this name, None where there is none; an empty namespace for a kind that has none."""
        found = (reflector.store.get(namespace, name) for reflector in self._of(kind))
        return next((obj for obj in found if obj is not None), None)

    def list(self, kind: Kind, namespace: str | None = None) -> Objects:
        """All objects of a kind, or those of one namespace."""
        return _once([obj for reflector in self._of(kind) for obj in reflector.store.list(namespace)])

    def by_owner(self, kind: Kind, owner_uid: str) -> Objects:
        """The objects of a kind whose controller has this UID."""
        return _once([obj for reflector in self._of(kind) for obj in reflector.store.by_owner(owner_uid)])

    def synced(self, kind: Kind) -> bool:
        """Whether everything that is watched of this kind has been listed at least once."""
        reflectors = self._of(kind)
        return bool(reflectors) and all(reflector.synced for reflector in reflectors)

    def _of(self, kind: Kind) -> tuple[Reflector, ...]:
        return self._reflectors.get(kind, ())


def _once(objects: Objects) -> Objects:
    return list({obj["metadata"]["uid"]: obj for obj in objects}.values())
