"""OpenTelemetry's exporter of spans, and what it must not be able to do to this process.

The only module that imports OpenTelemetry; `tracing.py` imports it where there is an endpoint, and nobody else does.
"""

import logging
from collections.abc import Iterable
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from shardwise_operator.runtime.tracing import Span

# The exporter tries again for so long where nobody answers, or where it is asked to: a collector that restarts.
_SECONDS = 60.0
_MOST_LETTERS = 200  # of what a collector says, which is logged
_MICROSECONDS = 1_000_000
_SERVICE = "shardwise-operator"


class Exporter:
    """Posts spans to an endpoint; headers, certificates and more attributes come from the usual variables OTEL_*."""

    def __init__(self, endpoint: str, *, version: str, instance: str) -> None:
        """Name the endpoint; nothing is sent yet."""
        # What it says of a header that it cannot read has that header in it.
        logging.getLogger("opentelemetry.util.re").addFilter(_without_header)
        self._exporter = OTLPSpanExporter(endpoint, session=_BoundedSession(), timeout=_SECONDS)
        self._resource = Resource.create(
            {SERVICE_NAME: _SERVICE, SERVICE_VERSION: version, SERVICE_INSTANCE_ID: instance}
        )
        self._scope = InstrumentationScope("shardwise_operator", version)

    def export(self, spans: Iterable[Span]) -> bool:
        """Send spans; return whether the collector has taken them."""
        return self._exporter.export([self._readable(span) for span in spans]) == SpanExportResult.SUCCESS

    def close(self) -> None:
        """End a wait between two tries, and every try from then on."""
        self._exporter.shutdown()

    def _readable(self, span: Span) -> ReadableSpan:
        # A tracer makes spans of what happens while it looks, with identifiers by chance. These are over, and known.
        return ReadableSpan(
            span.name,
            context=_context(span.trace_id, span.span_id),
            parent=None if span.parent_id is None else _context(span.trace_id, span.parent_id),
            resource=self._resource,
            attributes=dict(span.attributes),
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=_nanoseconds(span.start),
            end_time=_nanoseconds(span.end),
            instrumentation_scope=self._scope,
        )


class _BoundedSession(requests.Session):
    """Reads no more of an answer than its status and headers, and takes a redirection for a refusal.

    The exporter goes by the status alone. It would keep a body of any size in memory, and count a redirection, which
    it does not follow, as sent.
    """

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send a request."""
        options["stream"] = True
        if isinstance(self.verify, str):  # the exporter's own; what requests takes from the environment hides it
            options["verify"] = self.verify
        with super().send(request, **options) as answer:
            if 300 <= answer.status_code < 400:
                raise requests.exceptions.InvalidURL(f"the collector answers {answer.status_code}: it is elsewhere")
            answer.reason = (answer.reason or "")[:_MOST_LETTERS]
            answer._content = b""  # noqa: SLF001  the only way to say that there is nothing more to read
        return answer


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(seconds: float) -> int:
    """Return a time since the epoch in nanoseconds, to the microsecond: a float has no more."""
    return round(seconds * _MICROSECONDS) * 1000


def _without_header(record: logging.LogRecord) -> bool:
    record.args = ("(not shown)",)
    return True
