"""Keeps one store equal to what the API server has of one kind: lists it once, then follows its changes.

Started by the manager, one thread each. What it does about trouble: a watch that ends is taken up where it stood; a
version that is too old means a new list, and the changes are those between the two lists; a peer that fell silent is
given up; every failure waits longer than the one before. It never ends by itself: an error of our own ends its thread,
which `alive` tells the health check.
"""

import logging
import random
import threading
import time
from collections.abc import Callable

from shardwise_operator.runtime.errors import GoneError, KubernetesError
from shardwise_operator.runtime.kinds import Kind, Object, Objects
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.pace import backoff_seconds
from shardwise_operator.runtime.store import Change, Changes, Store
from shardwise_operator.runtime.stream import EventStream
from shardwise_operator.runtime.transport import Api

_WATCH_SECONDS = 30.0  # what is lost on a connection that is dead and open comes with the next one
_STABLE_SECONDS = 1.0  # a try that ended sooner counts as a failure, so nothing is asked more often than that
_FIRST_BACKOFF_SECONDS = 0.5
_MOST_BACKOFF_SECONDS = 8.0  # a new operator decides nothing before the last of its kinds is listed
_STUCK_SECONDS = 600.0  # beyond what a slow list and the longest backoff take together

_log = logging.getLogger(__name__)


class Reflector:
    """One kind, its store, and the thread that fills it."""

    def __init__(  # noqa: PLR0913  what is watched, and how, belongs together
        self,
        api: Api,
        metrics: Metrics,
        kind: Kind,
        changed: Callable[[Change], None],
        *,
        namespace: str = "",
        labels: str = "",
        keep: Callable[[Object], Object] = lambda obj: obj,
        metadata_alone: bool = False,
        watch_seconds: float = _WATCH_SECONDS,
    ) -> None:
        """Take what to watch; `changed` hears of every change, in this reflector's thread, after the store has it.

        `keep` is what the store holds of an object, and everybody sees; with `metadata_alone` no more is sent either.
        """
        self.kind = kind
        self.store = Store(keep)
        self._api = api
        self._metrics = metrics
        self._changed = changed
        self._namespace = namespace if kind.namespaced else ""
        self._labels, self._metadata_alone = labels, metadata_alone
        self._watch_seconds = watch_seconds
        self._version = ""
        self._synced = threading.Event()
        self._stopped = threading.Event()
        self._stream: EventStream | None = None
        self._turned_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"watch {kind.plural} {labels}".strip(), daemon=True)

    def start(self) -> None:
        """Begin; it goes on until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what is in the store stays."""
        self._stopped.set()
        if self._stream is not None:
            self._stream.shut()

    @property
    def synced(self) -> bool:
        """Whether the first list is in the store, and everybody was told."""
        return self._synced.is_set()

    @property
    def alive(self) -> bool:
        """Whether the thread lives and has lately been somewhere else in its loop; an absent server does not matter."""
        return self._thread.is_alive() and time.monotonic() - self._turned_at < _STUCK_SECONDS

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            began = self._turned_at = time.monotonic()
            try:
                if not self._version:
                    self._list()
                self._follow()
            except GoneError as error:
                _log.info("%s: listing again: %s", self.kind.plural, error.message)
                self._version = ""
            except KubernetesError as error:
                _log.warning("%s: trying again: %s", self.kind.plural, error)
            failures = 0 if time.monotonic() - began >= _STABLE_SECONDS else failures + 1
            if failures:
                self._stopped.wait(backoff_seconds(failures, first=_FIRST_BACKOFF_SECONDS, most=_MOST_BACKOFF_SECONDS))

    def _list(self) -> None:
        objects: Objects = []
        version = ""
        for page in self._api.pages(
            self.kind, self._namespace, labels=self._labels, metadata_alone=self._metadata_alone
        ):
            objects += page.items
            version = page.resource_version
            self._turned_at = time.monotonic()
        self._metrics.relists.labels(self.kind.plural).inc()
        self._tell(self.store.replace(objects))
        self._version = version
        self._synced.set()

    def _follow(self) -> None:
        self._stream = self._api.watch(
            self.kind,
            self._namespace,
            labels=self._labels,
            metadata_alone=self._metadata_alone,
            resource_version=self._version,
            timeout_seconds=self._watch_seconds * random.uniform(0.8, 1.2),  # noqa: S311  spreads load, guards nothing
        )
        if self._stopped.is_set():  # `stop` may have come too early to see the stream
            self._stream.shut()
        for event in self._stream:
            self._turned_at = time.monotonic()
            obj = event["object"]
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    self._tell(self.store.put(obj))
                case "DELETED":
                    self._tell(self.store.remove(obj))
            self._version = obj["metadata"]["resourceVersion"]  # a bookmark has nothing else

    def _tell(self, changes: Changes) -> None:
        held = sum((new is not None) - (old is not None) for old, new in changes)
        self._metrics.cached.labels(self.kind.plural).inc(held)  # several reflectors may hold one kind
        for change in changes:
            self._changed(change)
