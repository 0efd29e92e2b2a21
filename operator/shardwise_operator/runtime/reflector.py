"""Keep one store equal to what the API server has of one kind: list it once, then follow its changes, in a thread.

A watch that ends is continued at the last version. If that is too old, the kind is listed again, and the changes are
those between the two lists. A server that falls silent is given up, and each failure waits longer than the one before.
An object that `keep` cannot read is left out, and its name is in the log. The thread never ends by itself: a bug would
end it, and the health check sees that by `alive`.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from shardwise_operator.runtime.answers import EventStream
from shardwise_operator.runtime.errors import GoneError, KubernetesError
from shardwise_operator.runtime.kinds import Kind, Object, Objects
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.pace import retry_seconds, spread
from shardwise_operator.runtime.store import Change, Changes, Store
from shardwise_operator.runtime.transport import Api

_WATCH_SECONDS = 30.0  # so an event that a dead, open connection never brings comes with the next watch
_STABLE_SECONDS = 1.0  # a try that ended sooner counts as a failure, so the server gets no more requests than that
_FIRST_BACKOFF_SECONDS = 0.5
_MOST_BACKOFF_SECONDS = 8.0  # a new operator decides nothing before the last of its kinds is listed
_STUCK_SECONDS = 600.0  # beyond what a slow list and the longest backoff take together

_log = logging.getLogger(__name__)


@dataclass
class Reflector:
    """One kind, its store, and the thread that fills it.

    Attributes:
        api: lists and watches.
        metrics: counts what is listed and held.
        kind: what is watched.
        changed: is called for every change, in this reflector's thread, once the store has it.
        namespace: that of the objects; empty, all of them.
        labels: a label selector; empty for all objects.
        keep: returns the part of an object that the store holds.
        metadata_alone: whether the server sends no more than the metadata.
        watch_seconds: after how long a watch begins anew.

    """

    api: Api
    metrics: Metrics
    kind: Kind
    changed: Callable[[Change], None]
    _: KW_ONLY
    namespace: str = ""
    labels: str = ""
    keep: Callable[[Object], Object] = lambda obj: obj
    metadata_alone: bool = False
    watch_seconds: float = _WATCH_SECONDS

    def __post_init__(self) -> None:
        self.store = Store(self.keep)
        self.namespace = self.namespace if self.kind.namespaced else ""
        self._version = ""
        self._synced = threading.Event()
        self._stopped = threading.Event()
        self._stream: EventStream | None = None
        self._turned_at = time.monotonic()
        name = f"watch {self.kind.plural} {self.labels}".strip()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, which goes on until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what is in the store stays."""
        self._stopped.set()
        if self._stream is not None:
            self._stream.shut()

    @property
    def synced(self) -> bool:
        """Whether the first list is in the store, and `changed` was called for all of it."""
        return self._synced.is_set()

    @property
    def alive(self) -> bool:
        """Whether the thread lives and its loop has moved on lately; an absent server does not count against it."""
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
                self._stopped.wait(retry_seconds(failures, first=_FIRST_BACKOFF_SECONDS, most=_MOST_BACKOFF_SECONDS))
        self.metrics.cached.labels(self.kind.plural).dec(len(self.store))

    def _list(self) -> None:
        objects: Objects = []
        version = ""
        for page in self.api.pages(self.kind, self.namespace, labels=self.labels, metadata_alone=self.metadata_alone):
            objects += page.items
            version = page.resource_version
            self._turned_at = time.monotonic()
        # A list that broke off has left the store as it was: it is replaced only by a whole one.
        self.metrics.relists.labels(self.kind.plural).inc()
        self._tell(self.store.replace(objects))
        self._version = version
        self._synced.set()

    def _follow(self) -> None:
        self._stream = self.api.watch(
            self.kind,
            self.namespace,
            labels=self.labels,
            metadata_alone=self.metadata_alone,
            resource_version=self._version,
            timeout_seconds=self.watch_seconds * spread(0.8, 1.2),
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
            self._version = obj["metadata"][
                "resourceVersion"
            ]  # after the store has the change; a bookmark has nothing but its version

    def _tell(self, changes: Changes) -> None:
        held = sum((new is not None) - (old is not None) for old, new in changes)
        self.metrics.cached.labels(self.kind.plural).inc(held)  # several reflectors may hold one kind
        for change in changes:
            self.changed(change)
