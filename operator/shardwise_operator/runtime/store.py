"""The objects of one reflector, in memory: by name, and by the namespace and the UID of their controller.

The objects that it returns are shared: never change one in place. One that cannot be read is not held.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Any

from shardwise_operator.runtime.kinds import UNREADABLE, Object, Objects, called

# One object before and after: None before if it is new, None after if it is gone.
Change = tuple[Object | None, Object | None]
Changes = list[Change]

_INTERNED_CHARACTERS = 64

_log = logging.getLogger(__name__)


class Store:
    """Objects of one kind, thread-safe."""

    def __init__(self, keep: Callable[[Object], Object] = lambda obj: obj) -> None:
        """Hold what `keep` returns of each object: at least its name, UID, version and owners."""
        self._part = keep
        self._lock = threading.Lock()
        self._objects: dict[tuple[str, str], Object] = {}
        self._owned: dict[tuple[str, str], dict[tuple[str, str], Object]] = {}

    def replace(self, objects: Iterable[Object]) -> Changes:
        """Hold exactly these objects; return what that has changed."""
        kept = [held for obj in objects if (held := self._kept(obj)) is not None]
        with self._lock:
            gone = dict(self._objects)
            changes: Changes = []
            for obj in kept:
                gone.pop(_place(obj), None)
                changes += self._put(obj)
            return [*(self._drop(old) for old in gone.values()), *changes]

    def put(self, obj: Object) -> Changes:
        """Hold this object: no change if it is held already, two if it was deleted and created again under its name."""
        kept = self._kept(obj)  # outside the lock, for which every pass waits
        with self._lock:
            if kept is not None:
                return self._put(kept)
            # What is held of it is out of date, and nothing better is known.
            old = self._objects.get(_place(obj))
            return [self._drop(old)] if old is not None else []

    def remove(self, obj: Object) -> Changes:
        """Drop this object; nothing changes if another one has its name by now."""
        with self._lock:
            old = self._objects.get(_place(obj))
            return [self._drop(old)] if old is not None and _uid(old) == _uid(obj) else []

    def get(self, namespace: str, name: str) -> Object | None:
        """Return the object of this name, None without one."""
        return self._objects.get((namespace, name))  # one look-up is atomic, and a pass makes many

    def list(self, namespace: str | None = None) -> Objects:
        """Return all objects, or those of one namespace."""
        with self._lock:
            return [obj for place, obj in self._objects.items() if namespace is None or place[0] == namespace]

    def by_owner(self, namespace: str, uid: str) -> Objects:
        """Return the objects of a namespace whose controller has this UID.

        The API server does not look whether an owner lies in an object's namespace: any UID may be named in any.
        """
        with self._lock:
            return list(self._owned.get((namespace, uid), {}).values())

    def __len__(self) -> int:
        return len(self._objects)

    def _put(self, obj: Object) -> Changes:
        old = self._objects.get(_place(obj))
        if old is not None and _version(old) == _version(obj):
            return []
        replaced = [self._drop(old)] if old is not None and _uid(old) != _uid(obj) else []
        if old is not None and not replaced:
            self._disown(old)
        self._objects[_place(obj)] = obj  # in place of the old one: a look-up finds one or the other
        if owner := controller_uid(obj):
            self._owned.setdefault((_place(obj)[0], owner), {})[_place(obj)] = obj
        return [*replaced, (None if replaced else old, obj)]

    def _kept(self, obj: Object) -> Object | None:
        try:
            obj["metadata"].pop("managedFields", None)  # often half of an object, and of no use here
            obj.get("status", {}).pop("images", None)  # nor is what lies on a node, which is most of the rest of it
            kept: Object = _shared(self._part(obj), self._objects.get(_place(obj)))
        except UNREADABLE:  # one object, of whoever may write one, must not end the watch of all
            _log.exception("%s is left out: it cannot be read", called(obj))
            return None
        return kept

    def _drop(self, old: Object) -> Change:
        del self._objects[_place(old)]
        self._disown(old)
        return old, None

    def _disown(self, old: Object) -> None:
        place, uid = _place(old), controller_uid(old)
        if uid:
            owner = (place[0], uid)
            del self._owned[owner][place]
            if not self._owned[owner]:
                del self._owned[owner]


def controller_uid(obj: Object) -> str:
    """Return the UID of the object that controls this one; "" if none does."""
    owners = obj["metadata"].get("ownerReferences") or []
    return next((owner["uid"] for owner in owners if owner.get("controller")), "")


def _place(obj: Object) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _uid(obj: Object) -> str:
    return str(obj["metadata"]["uid"])


def _version(obj: Object) -> tuple[str, str]:
    return _uid(obj), obj["metadata"]["resourceVersion"]


def _shared(value: Any, old: Any) -> Any:
    """Return the value, with every key and short text interned, and the parts of `old` where they are equal.

    Most of an object is as before when it changes, and thousands of pods have nearly the same.
    """
    if isinstance(value, dict):
        if value == old:
            return old
        fields = old if isinstance(old, dict) else {}
        return {sys.intern(key): _shared(inner, fields.get(key)) for key, inner in value.items()}
    if isinstance(value, list):
        if value == old:
            return old
        items = old if isinstance(old, list) else []
        return [_shared(inner, each) for inner, each in zip_longest(value, items[: len(value)])]
    if isinstance(value, str) and len(value) <= _INTERNED_CHARACTERS:
        return sys.intern(value)
    return value
