"""Spans: pieces of a trace, sent to a collector of OpenTelemetry from a thread of their own.

A span helps people, it is never state: one that cannot be sent is counted and dropped. Nothing that the collector does
reaches who hands a span over. OpenTelemetry is imported in `otlp.py`, and only where there is an endpoint.
"""

import logging
import queue
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from shardwise_operator.runtime.metrics import Metrics

if TYPE_CHECKING:
    from shardwise_operator.runtime.otlp import Exporter

_MOST_WAITING = 4096
_MOST_AT_ONCE = 256
_LAST_SECONDS = 5.0  # for what waits when the process ends
_PATH = "/v1/traces"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Span:
    """One span.

    Attributes:
        trace_id: the number of its trace, of 128 bits.
        span_id: its own, of 64 bits.
        parent_id: that of the span that it is a part of; None for the root of a trace.
        name: what went on; there are few names.
        start: in seconds since the epoch.
        end: the same.
        attributes: what is known of it.
        error: why it failed; None if it did not.

    """

    trace_id: int
    span_id: int
    parent_id: int | None
    name: str
    start: float
    end: float
    attributes: Mapping[str, str | int | float]
    error: str | None = None


@dataclass
class Tracing:
    """Sends spans, for the length of a `with` statement.

    Attributes:
        endpoint: the URL that takes them, as `checked_endpoint` returns it.
        metrics: counts them.
        version: the version of this program.
        instance: a name for this process.

    """

    endpoint: str
    metrics: Metrics
    _: KW_ONLY
    version: str
    instance: str

    def __post_init__(self) -> None:
        self._waiting: queue.Queue[Span | None] = queue.Queue(_MOST_WAITING)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="spans", daemon=True)
        self._exporter: Exporter | None = None

    def send(self, spans: Iterable[Span]) -> None:
        """Have spans sent, without waiting for anything; those that find no room are counted and dropped."""
        for span in spans:
            try:
                self._waiting.put_nowait(span)
            except queue.Full:
                self.metrics.spans.labels("dropped").inc()

    def __enter__(self) -> Self:
        from shardwise_operator.runtime.otlp import Exporter  # noqa: PLC0415  for who has an endpoint alone

        self._exporter = Exporter(self.endpoint, version=self.version, instance=self.instance)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Send what waits, within a bound."""
        assert self._exporter is not None
        ends_at = time.monotonic() + _LAST_SECONDS
        self._ends.set()
        with suppress(queue.Full):  # then the thread is not waiting for anything to send
            self._waiting.put_nowait(None)  # wakes it
        self._thread.join(max(0.0, ends_at - time.monotonic()))
        self._exporter.close()
        if self._thread.is_alive():
            _log.warning("the collector has not taken all spans within %g s, and the rest is lost", _LAST_SECONDS)

    def _send_all(self) -> None:
        assert self._exporter is not None
        while batch := self._batch():
            result = "sent" if self._exporter.export(batch) else "failed"
            self.metrics.spans.labels(result).inc(len(batch))

    def _batch(self) -> list[Span]:
        """Wait for spans, and return those that are there; none once the process ends."""
        batch: list[Span] = []
        while len(batch) < _MOST_AT_ONCE:
            try:
                span = self._waiting.get(block=not batch and not self._ends.is_set())
            except queue.Empty:
                break
            if span is not None:
                batch.append(span)
            elif not batch:
                continue  # the process ends: what came before is still sent
        return batch


def checked_endpoint(url: str) -> str:
    """Return the URL to which spans are posted; one without a path gets the usual one.

    Raises:
        ValueError: it is no URL of HTTP, or has a secret in it, which everybody sees who sees the process.

    """
    wanted = f"expected an http:// or https:// URL, such as http://collector.monitoring:4318{_PATH}"
    if "@" in url:
        raise ValueError(f"given a URL with a user in it, {wanted}; secrets go into OTEL_EXPORTER_OTLP_HEADERS")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:  # a port that is none, or half an IPv6 address
        raise ValueError(f"given {url!r} ({error}), {wanted}") from error
    if not usable or parts.fragment or not url.isprintable() or " " in url:
        raise ValueError(f"given {url!r}, {wanted}")
    return url if parts.path.strip("/") else parts._replace(path=_PATH).geturl()
