"""An agent's HTTP: whether its host is ready, and on host 0 the status of the run, and requests to it.

    GET /ready     on every host, without a token: 200 once its trainer has joined the others, else 503
    GET /status    a `RunStatus` as JSON             GET /metrics   the same for Prometheus
    GET /page      the page of the run               POST /page     the same, for the form that asks for the token
    POST /save     save, and go on                   POST /stop     save, then stop
    POST /poll     a follower's `Poll`, and its `PollAnswer`

The last is signed with the gang's token, and so is its answer (`protocol/poll.py`); the six before it ask for the
status token. A browser that comes to `/page` without it gets a form. The server runs in threads of its own, so a slow
reader delays nothing; it holds no state, and answers from the last status that the leader has made.
"""

import hmac
import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socket import SHUT_RDWR, socket
from typing import Any, Protocol

from pydantic import ValidationError

from shardwise.launcher.agent.config import Tokens
from shardwise.page.form import FORM, FORM_AGAIN, PAGE_HEADERS, PAGE_PATH, token_of
from shardwise.protocol.errors import ShardwiseError
from shardwise.protocol.poll import POLL_PATH, SIGNATURE, Poll, PollAnswer, answer_signature, poll_signature, same
from shardwise.protocol.run_status import RunStatus
from shardwise.protocol.storage import first_line
from shardwise.protocol.text import writable
from shardwise.protocol.threaded_server import ThreadedServer

_MAX_BODY_BYTES = 1 << 16
_MAX_DIGITS = 9  # of a length; Python reads no number of thousands
_TIMEOUT_SECONDS = 10.0
_CONNECTION_SECONDS = 30.0  # of a whole connection: what drips is never silent for long
_MOST_CONNECTIONS = 256
"""At once. Anyone may connect, and each takes a handle of this process, which may have 1024 for all that it does."""
_SPARED_SECONDS = 1.0  # where there are that many; a poll takes milliseconds
_ROOM_SECONDS = 0.05


class StatusSource(Protocol):
    """What the server asks of the leader, from any thread."""

    def status(self) -> RunStatus:
        """Return the last status of the run."""

    def metrics(self) -> bytes:
        """Return it in Prometheus' text format."""

    def page(self) -> bytes:
        """Return the page of the run."""

    def request(self, action: str) -> None:
        """Pass on a "save" or a "stop"."""

    def polled(self, poll: Poll) -> PollAnswer | None:
        """Answer a follower's poll; None if it looks for another leader."""


class Server(ThreadedServer):
    """The listening server, in threads."""

    request_queue_size = 4096  # the followers of a large run come all at once; one that finds no place waits a second

    def __init__(self, listen: str, tokens: Tokens, ready: Callable[[], bool], publisher: StatusSource | None) -> None:
        """Listen at "ip:port"; OSError if it is taken. Only host 0 has a publisher."""
        address, port = listen.rsplit(":", 1)
        super().__init__((address, int(port)), _Handler, name="http")
        self.tokens, self.ready, self.publisher = tokens, ready, publisher
        self._began: dict[socket, float] = {}
        self._room = threading.Semaphore(_MOST_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection, in a thread, once there is room: those that last make it."""
        while not self._room.acquire(timeout=_ROOM_SECONDS):
            self._end_after(_SPARED_SECONDS)
        self._began[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._began.pop(request, None)
        super().shutdown_request(request)
        self._room.release()

    def service_actions(self) -> None:
        """End the connections that have lasted too long; called several times a second."""
        self._end_after(_CONNECTION_SECONDS)

    def _end_after(self, seconds: float) -> None:
        """End the connections that have lasted for longer."""
        least = time.monotonic() - seconds
        for connection in [connection for connection, began in list(self._began.items()) if began < least]:
            with suppress(OSError):  # it has just come to its end
                connection.shutdown(SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_SECONDS

    def do_GET(self) -> None:
        """Answer a reader."""
        if self.path == "/ready":
            ready = self.server.ready()
            status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
            self._send(status, "text/plain", b"ready\n" if ready else b"joining\n")
        elif self.path == PAGE_PATH and self.server.publisher and "Authorization" not in self.headers:
            self._page(HTTPStatus.UNAUTHORIZED, FORM)
        elif publisher := self._leader():
            if self.path == "/status":
                self._send(HTTPStatus.OK, "application/json", publisher.status().model_dump_json().encode())
            elif self.path == "/metrics":
                self._send(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", publisher.metrics())
            elif self.path == PAGE_PATH:
                self._page_of(publisher)
            else:
                self._refuse(HTTPStatus.NOT_FOUND, "there are /ready, /status, /metrics and /page")

    def do_POST(self) -> None:
        """Take a request."""
        given = self.headers.get("Content-Length") or "0"
        plain = given.isascii() and given.isdecimal() and len(given) <= _MAX_DIGITS
        length = int(given) if plain else _MAX_BODY_BYTES + 1
        if length > _MAX_BODY_BYTES:
            self.close_connection = True
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {_MAX_BODY_BYTES} bytes")
            return
        body = self.rfile.read(length)
        if self.path == POLL_PATH:
            self._poll(body)
        elif self.path == PAGE_PATH and (publisher := self.server.publisher):
            allowed = hmac.compare_digest(token_of(body), self.server.tokens.status.encode())
            if allowed:
                self._page_of(publisher)
            else:
                self._page(HTTPStatus.UNAUTHORIZED, FORM_AGAIN)
        elif publisher := self._leader():
            if self.path in ("/save", "/stop"):
                publisher.request(self.path[1:])
                self._json({}, HTTPStatus.ACCEPTED)
            else:
                self._refuse(HTTPStatus.NOT_FOUND, "there are /save, /stop and /page")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is the standard library's
        """Log nothing: people read the run's own output."""

    def _poll(self, body: bytes) -> None:
        publisher = self.server.publisher
        signature = poll_signature(self.server.tokens.gang, body)
        if not same(self.headers.get(SIGNATURE, ""), signature):
            self._refuse(HTTPStatus.UNAUTHORIZED, "expected a signature with the gang's token")
        elif publisher is None:
            self._refuse(HTTPStatus.NOT_FOUND, "ask host 0")
        else:
            self._answer_poll(body, signature, publisher)

    def _answer_poll(self, body: bytes, signature: str, publisher: StatusSource) -> None:
        try:
            answer = publisher.polled(Poll.model_validate_json(body))
        except ValidationError:
            self._refuse(HTTPStatus.BAD_REQUEST, "expected a follower's poll")
            return
        if answer is None:
            self._refuse(HTTPStatus.CONFLICT, "this is another leader")
            return
        raw = answer.model_dump_json().encode()
        signed = {SIGNATURE: answer_signature(self.server.tokens.gang, signature, raw)}
        self._send(HTTPStatus.OK, "application/json", raw, signed)

    def _leader(self) -> StatusSource | None:
        """Return the leader's side if the request has the status token; None if it is refused, and answered."""
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, f"Bearer {self.server.tokens.status}".encode()):
            self._refuse(HTTPStatus.UNAUTHORIZED, "expected the token of this path: Authorization: Bearer ...")
            return None
        if self.server.publisher is None:
            self._refuse(HTTPStatus.NOT_FOUND, "ask host 0")
        return self.server.publisher

    def _page_of(self, publisher: StatusSource) -> None:
        """Answer with the page of the run, or with why its directory does not allow one now."""
        try:
            page = publisher.page()
        except (OSError, ShardwiseError) as error:
            why = writable(first_line(error))
            then = "the run goes on: reload the page once that is mended"
            said = f"The page of the run cannot be made now ({why}); {then}.\n".encode()
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", said, PAGE_HEADERS)
        else:
            self._page(HTTPStatus.OK, page)

    def _page(self, status: HTTPStatus, page: bytes) -> None:
        self._send(status, "text/html; charset=utf-8", page, PAGE_HEADERS)

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._json({"error": reason}, status)

    def _json(self, content: dict[str, str], status: HTTPStatus) -> None:
        self._send(status, "application/json", json.dumps(content).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
