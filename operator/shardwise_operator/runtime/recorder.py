"""Kubernetes Events: what `kubectl describe` lists below an object.

An event helps people, it is never state: one that cannot be sent is counted and dropped. The same message about the
same object is one event whose count goes up.
"""

import logging
import threading
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

from shardwise_operator.runtime.errors import KubernetesError
from shardwise_operator.runtime.kinds import EVENTS, Object, timestamp
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.pace import Limiter
from shardwise_operator.runtime.transport import Api

NORMAL = "Normal"
WARNING = "Warning"

_REMEMBERED = 4096
_SAME_EVENT_SECONDS = 600.0
_BURST = 25  # of one object and severity, then one in five minutes
_QPS = 1 / 300
_MESSAGE_CHARACTERS = 1024  # the API server refuses more

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass
class _Sent:
    metadata: Object
    count: int
    at: float


class Recorder:
    """Sends events, from any thread."""

    def __init__(self, api: Api, metrics: Metrics, *, component: str) -> None:
        """Send events as `component`, which `kubectl describe` shows as their source."""
        self._api = api
        self._metrics = metrics
        self._component = component
        self._lock = threading.Lock()
        self._sent: OrderedDict[tuple[str, ...], _Sent] = OrderedDict()
        self._limiters: OrderedDict[tuple[str, ...], Limiter] = OrderedDict()

    def record(self, about: Object, severity: str, reason: str, message: str) -> None:
        """Send an event about an object; `severity` is NORMAL or WARNING."""
        message = message[:_MESSAGE_CHARACTERS]
        key = (about["metadata"]["uid"], severity, reason, message)
        with self._lock:
            if not self._limiter(key[:2]).taken():
                self._metrics.events.labels("dropped").inc()
                return
            earlier = self._sent.get(key)
        try:
            if earlier is not None and time.monotonic() - earlier.at < _SAME_EVENT_SECONDS:
                self._count_up(earlier)
            else:
                sent = self._create(about, severity, reason, message)
                with self._lock:
                    _remember(self._sent, key, sent)
        except KubernetesError as error:
            _log.warning("event %s about %s was not sent: %s", reason, about["metadata"]["name"], error)
            self._metrics.events.labels("failed").inc()
            with self._lock:
                self._sent.pop(key, None)
        else:
            self._metrics.events.labels("sent").inc()

    def _limiter(self, whose: tuple[str, ...]) -> Limiter:
        """Return the limiter of one object and severity: many normal events leave room for a warning."""
        limiter = self._limiters.get(whose) or Limiter(_QPS, _BURST)
        _remember(self._limiters, whose, limiter)
        return limiter

    def _count_up(self, event: _Sent) -> None:
        with self._lock:
            event.count += 1
            patch = {"count": event.count, "lastTimestamp": timestamp(time.time())}
        metadata = event.metadata
        self._api.patch(EVENTS, metadata["namespace"], metadata["name"], patch, uid=metadata["uid"])
        event.at = time.monotonic()

    def _create(self, about: Object, severity: str, reason: str, message: str) -> _Sent:
        metadata, now = about["metadata"], timestamp(time.time())
        namespace = metadata.get("namespace") or "default"  # where events about objects without a namespace belong
        named = {
            field: metadata[field] for field in ("namespace", "name", "uid", "resourceVersion") if field in metadata
        }
        event = EVENTS.manifest(
            {"namespace": namespace, "name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}"},
            involvedObject={"apiVersion": about["apiVersion"], "kind": about["kind"], **named},
            type=severity,
            reason=reason,
            message=message,
            count=1,
            firstTimestamp=now,
            lastTimestamp=now,
            source={"component": self._component},
            reportingComponent=self._component,
            reportingInstance="",
        )
        return _Sent(self._api.create(EVENTS, event)["metadata"], 1, time.monotonic())


def _remember(known: OrderedDict[tuple[str, ...], T], key: tuple[str, ...], value: T) -> None:
    """Keep a value as the newest of a bounded number."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
