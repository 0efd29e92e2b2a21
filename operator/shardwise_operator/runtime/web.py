"""Small pages over HTTP: health, metrics and others, served in threads of their own.

A page that is `guarded` asks for a token. Nothing is read of a request before its length is known to be small, and a
connection ends after half a minute, however slowly its peer sends.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6, SHUT_RDWR, socket
from ssl import SSLError
from typing import Any, Self

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from shardwise_operator.runtime.access import Certificate, TokenFile
from shardwise_operator.runtime.manager import Manager

_TIMEOUT_SECONDS = 10.0
_CONNECTION_SECONDS = 30.0  # of a whole connection: what drips is never silent for long
_MAX_FORM_BYTES = 4096
_PLAIN = "text/plain; charset=utf-8"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked: the header `Authorization`, None without one, and what a form has sent."""

    authorization: str | None = field(default=None, repr=False)
    form: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Answer:
    """What is answered."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


Page = Callable[[Request], Answer]
"""A page is made for each request."""


def health_pages(manager: Manager, polls_stuck: Callable[[], list[str]]) -> dict[str, Page]:
    """Return `/healthz`, whether this process can work, and `/readyz`, whether its cache is filled."""
    return {
        "/healthz": lambda _: _verdict(
            {
                "no longer watched": manager.dead(),
                "a pass stands still": manager.stuck(),
                "a poll stands still": polls_stuck(),
            }
        ),
        "/readyz": lambda _: _verdict({"not listed yet": manager.unsynced()}),
    }


def metrics_pages(registry: CollectorRegistry, token: TokenFile | None = None) -> dict[str, Page]:
    """Return `/metrics`, in Prometheus' text format; with a token, for those who have it."""

    def page(_: Request) -> Answer:
        return Answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry))

    return {"/metrics": guarded(page, token) if token else page}


def guarded(page: Page, token: TokenFile) -> Page:
    """Return the page for requests that carry the token, and a refusal for all others."""

    def answer(request: Request) -> Answer:
        scheme, _, given = (request.authorization or "").partition(" ")
        if scheme.lower() == "bearer" and token.allows(given.encode()):
            return page(request)
        said = b"expected the token of this page: Authorization: Bearer ...\n"
        return Answer(HTTPStatus.UNAUTHORIZED, _PLAIN, said, {"WWW-Authenticate": "Bearer"})

    return answer


class WebServer(ThreadingHTTPServer):
    """Serves pages while its block runs."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        address: str,
        pages: Mapping[str, Page],
        *,
        forms: Mapping[str, Page] | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        """Listen at `address`, "host:port" with an empty host for all; OSError if the port is taken.

        `forms` are the pages that a form is posted to. With a certificate, over TLS alone.
        """
        host, _, port = address.rpartition(":")
        if ":" in host:
            self.address_family = AF_INET6
        super().__init__((host.strip("[]"), int(port)), _Handler)
        self.pages, self.forms = pages, forms or {}
        self._certificate = certificate
        self._began: dict[socket, float] = {}
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="web", daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens on; the kernel's choice if 0 was asked for."""
        return int(self.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def get_request(self) -> tuple[socket, Any]:
        """Take a connection; its handshake is left to its thread."""
        connection, peer = super().get_request()
        return (self._certificate.wrap(connection) if self._certificate else connection), peer

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection, in a thread."""
        self._began[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._began.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End the connections that have lasted too long; called several times a second."""
        least = time.monotonic() - _CONNECTION_SECONDS
        for connection in [connection for connection, began in list(self._began.items()) if began < least]:
            with suppress(OSError):  # it has just come to its end
                connection.shutdown(SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  the library's signature
        """Ignore a peer that has gone or speaks no TLS; log an error of our own with its traceback."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError, SSLError)):
            _log.exception("a request to %s failed", client_address)


class _Handler(BaseHTTPRequestHandler):
    server: WebServer
    timeout = _TIMEOUT_SECONDS

    def do_GET(self) -> None:
        """Answer with the page of this path."""
        self._answer(self.server.pages, Request(authorization=self.headers.get("Authorization")))

    def do_POST(self) -> None:
        """Take a form."""
        given = self.headers.get("Content-Length", "")
        length = int(given) if given.isascii() and given.isdecimal() and len(given) <= len(str(_MAX_FORM_BYTES)) else -1
        if 0 <= length <= _MAX_FORM_BYTES:
            self._answer(self.server.forms, Request(form=self.rfile.read(length)))
        else:
            said = f"expected a form of at most {_MAX_FORM_BYTES} bytes, and its length\n".encode()
            self._send(Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _PLAIN, said))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is the standard library's
        """Log nothing: probes come every few seconds."""

    def _answer(self, pages: Mapping[str, Page], request: Request) -> None:
        page = pages.get(self.path.partition("?")[0])
        there_are = " ".join(self.server.pages).encode()
        self._send(page(request) if page else Answer(HTTPStatus.NOT_FOUND, _PLAIN, there_are))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)


def _verdict(wrong: Mapping[str, list[str]]) -> Answer:
    problems = [f"{problem}: {', '.join(what)}\n" for problem, what in wrong.items() if what]
    if problems:
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, _PLAIN, "".join(problems).encode())
    return Answer(HTTPStatus.OK, _PLAIN, b"ok\n")
