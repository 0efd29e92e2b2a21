"""Run a controller: watch, keep the queue filled, and let workers empty it while this process leads.

A follower watches too, so its cache is warm, but reconciles nothing. On SIGTERM the workers finish their pass, then the
Lease is released. If the Lease is lost, the elector ends the process.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

from shardwise_operator.runtime.cache import Cache
from shardwise_operator.runtime.elector import Elector
from shardwise_operator.runtime.errors import ConflictError, KubernetesError, NotLeadingError
from shardwise_operator.runtime.kinds import UNREADABLE, Kind, Object, called
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.queue import Key, WorkQueue
from shardwise_operator.runtime.reflector import Reflector
from shardwise_operator.runtime.store import Change
from shardwise_operator.runtime.transport import Api

_SYNC_POLL_SECONDS = 0.05
# A pass that creates thousands of pods takes long; each of its requests does not.
_STUCK_SECONDS = 180.0
_DRAIN_SECONDS = 20.0  # less than the grace period of a pod

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What a controller wants to see. An object that one of the functions cannot read ends no watch, and is logged.

    Attributes:
        kind: the kind of the objects.
        keys: returns the keys to reconcile when an object appears, changes or goes; called for the old and the new one.
        labels: a label selector; empty for all objects.
        keep: returns the part of an object that is held in memory; by default all of it.
        metadata_alone: whether the API server sends no more of an object than its metadata.
    """

    kind: Kind
    keys: Callable[[Object], Iterable[Key]]
    labels: str = ""
    keep: Callable[[Object], Object] = lambda obj: obj
    metadata_alone: bool = False


class Controller(Protocol):
    """What the manager runs."""

    @property
    def watches(self) -> Sequence[Watch]:
        """What to watch from the start."""

    def reconcile(self, key: Key) -> float | None:
        """Bring one job nearer to what its owner asked for. Never called for the same key twice at a time.

        Returns:
            In how many seconds to call again though nothing changed; None for never.

        Raises:
            Exception: the pass failed; it is called again, later each time.
        """


@dataclass
class Manager:
    """The reflectors, the queue and the workers of one controller.

    Attributes:
        api: lists and watches.
        cache: the controller's too.
        queue: the controller's too.
        elector: says whether this process leads.
        metrics: has the figures of passes.
        workers: how many jobs are reconciled at a time.
        namespace: what is watched; empty, all of them.

    """

    api: Api
    cache: Cache
    queue: WorkQueue
    elector: Elector
    metrics: Metrics
    _: KW_ONLY
    workers: int
    namespace: str = ""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._began: dict[int, tuple[float, Key]] = {}  # by thread, the passes that run
        self._reflectors: dict[tuple[Kind, str], Reflector] = {}
        self.metrics.leader.set_function(lambda: float(self.elector.leads()))

    def run(self, controller: Controller, stop: threading.Event) -> None:
        """Watch, lead, reconcile, until `stop` is set."""
        for watch in controller.watches:
            self.watch(watch)
        while self.unsynced() and not stop.wait(_SYNC_POLL_SECONDS):
            pass
        if self.elector.acquire(stop):
            self._work(controller, stop)
        for reflector in self._all():
            reflector.stop()

    def watch(self, watch: Watch) -> None:
        """Start a watch, unless the kind is watched with the same labels already."""
        with self._lock:
            if (watch.kind, watch.labels) in self._reflectors:
                return
            reflector = Reflector(
                self.api,
                self.metrics,
                watch.kind,
                lambda change: self._enqueue(watch, change),
                namespace=self.namespace,
                labels=watch.labels,
                keep=watch.keep,
                metadata_alone=watch.metadata_alone,
            )
            self.cache.add(reflector)
            reflector.start()  # before others see it: a thread that has not started looks like a dead one
            self._reflectors[watch.kind, watch.labels] = reflector

    def unwatch(self, kind: Kind, labels: str) -> None:
        """End the watch of a kind with these labels, if there is one; the cache has its objects no more."""
        with self._lock:
            reflector = self._reflectors.pop((kind, labels), None)
        if reflector is not None:
            self.cache.remove(reflector)
            reflector.stop()

    def unsynced(self) -> list[str]:
        """Return the kinds that have not been listed yet: nothing is decided before they are."""
        return sorted(reflector.kind.plural for reflector in self._all() if not reflector.synced)

    def dead(self) -> list[str]:
        """Return the kinds whose reflector has ended or is stuck: only a new process helps."""
        return sorted(reflector.kind.plural for reflector in self._all() if not reflector.alive)

    def stuck(self) -> list[str]:
        """Return the jobs whose pass is stuck: its worker takes no other job."""
        now, answered_at = time.monotonic(), self.metrics.answered_at
        running = list(self._began.items())
        # Counted from the last answer of the API server to that thread: a pass may be long if it makes progress.
        still = [
            key for thread, (began, key) in running if now - max(began, answered_at.get(thread, began)) > _STUCK_SECONDS
        ]
        return sorted("/".join(key) for key in still)

    def _all(self) -> list[Reflector]:
        with self._lock:
            return list(self._reflectors.values())

    def _enqueue(self, watch: Watch, change: Change) -> None:
        for obj in filter(None, change):
            for key in _keys(watch, obj):
                self.queue.add(key)

    def _work(self, controller: Controller, stop: threading.Event) -> None:
        workers = [
            threading.Thread(target=self._reconcile_all, args=(controller, stop), name=f"worker {n}", daemon=True)
            for n in range(self.workers)
        ]
        for worker in workers:
            worker.start()
        stop.wait()
        self.queue.shut()
        ends_at = time.monotonic() + _DRAIN_SECONDS
        for worker in workers:
            worker.join(max(0.0, ends_at - time.monotonic()))
        if any(worker.is_alive() for worker in workers):
            _log.warning("a pass has not ended within %g s: the lease is left to run out", _DRAIN_SECONDS)
        else:
            self.elector.release()

    def _reconcile_all(self, controller: Controller, stop: threading.Event) -> None:
        # The event is asked too: the thread that shuts the queue may be some time behind it on a busy machine.
        while (key := self.queue.get()) is not None and not stop.is_set():
            began = time.monotonic()
            self._began[threading.get_ident()] = (began, key)
            result = self._reconcile(controller, key)
            del self._began[threading.get_ident()]
            self.metrics.pass_seconds.observe(time.monotonic() - began)
            self.metrics.passes.labels(result).inc()
            self.queue.done(key)

    def _reconcile(self, controller: Controller, key: Key) -> str:
        """Make one pass; return its result as the metric names it."""
        try:
            requeue_after_seconds = controller.reconcile(key)
        except (ConflictError, NotLeadingError) as error:  # someone else was first: decide again, on what there is now
            _log.info("%s/%s: again, since %s", *key, error)
            result = "outdated"
        except KubernetesError as error:
            _log.warning("%s/%s: trying again: %s", *key, error)
            result = "failed"
        except Exception:  # noqa: BLE001  a bug that one job shows must not stop the others; it is logged whole
            _log.exception("%s/%s: the pass failed", *key)
            result = "failed"
        else:
            self.queue.forget(key)
            if requeue_after_seconds is None:
                return "done"
            self.queue.add_after(key, requeue_after_seconds)
            return "again"
        self.queue.retry(key)
        return result


def _keys(watch: Watch, obj: Object) -> list[Key]:
    try:
        return list(watch.keys(obj))
    except UNREADABLE:  # one object, of whoever may write one, must not end the watch of all
        _log.exception("%s brings no pass: it cannot be read", called(obj))
        return []


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set. Call it from the main thread."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
