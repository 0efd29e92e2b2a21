"""A collector of spans on loopback: it decodes what is posted to it, and answers as a test says."""

import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True)
class Received:
    """One span as it came: identifiers in hexadecimal digits, times in nanoseconds since the epoch."""

    trace: str
    span: str
    parent: str
    name: str
    start: int
    end: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    failed: bool
    message: str


class Collector:
    """Takes spans, for the length of a `with` statement."""

    def __init__(self, port: int = 0, *, tls: ssl.SSLContext | None = None) -> None:
        """It listens from here on; without a port, on one that is free; with a context, to those who trust it."""
        self.spans: list[Received] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Callable[[BaseHTTPRequestHandler], None] = lambda handler: answered(handler, 200)
        """How a request is answered whose spans are kept."""
        self.closing = threading.Event()
        self._server = _Listener(("127.0.0.1", port), self)
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def of(self, job: str) -> list[Received]:
        """The spans of one job, each once, in the order in which they came."""
        return list({each.span: each for each in self.spans if each.attributes["shardwise.job.name"] == job}.values())

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        """A request has come."""
        self.paths.append(path)
        self.headers.append(headers)
        for of_one in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _values(of_one.resource.attributes)
            self.spans += [_received(span, resource) for scope in of_one.scope_spans for span in scope.spans]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


def answered(handler: BaseHTTPRequestHandler, status: int, **headers: str) -> None:
    """Answer without a body."""
    handler.send_response(status)
    for name, value in {**headers, "Content-Length": "0"}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], collector: Collector) -> None:
        super().__init__(address, _Handler)
        self.collector = collector


class _Handler(BaseHTTPRequestHandler):
    server: _Listener

    def do_POST(self) -> None:
        """Take spans."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.collector.take(self.path, dict(self.headers), body)
        try:
            self.server.collector.answer(self)
        except OSError:  # who sent them has gone
            return

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the standard library's
        """Say nothing."""


def _received(span: trace_pb2.Span, resource: dict[str, Any]) -> Received:
    return Received(
        trace=span.trace_id.hex(),
        span=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        name=span.name,
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        resource=resource,
        failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        message=span.status.message,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in _each(attributes)}


def _each(attributes: Any) -> list[KeyValue]:
    return list(attributes)


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)
