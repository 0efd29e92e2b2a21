"""An agent's HTTP: whether its host is ready, and on host 0 how the run stands, and requests to it.

    GET /ready     on every host, without a token: 200 once its trainer has joined the others, else 503
    GET /status    JSON, for people and tools        GET /metrics   the same for Prometheus
    POST /save     save, and go on                   POST /stop     save, then stop
    POST /gang     a follower says that it is there, and hears which epoch to join

The last is signed with the gang's token, and so is its answer (`signature.py`); the four before it ask for the status
token. Called by `agent.py`. It runs in threads
of its own, so a slow reader delays nothing; it holds no state, and answers from what the leader last made known.
"""

import hmac
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from typing import Any, Protocol, Self

from shardwise.launcher.client import POLL_PATH, SIGNATURE
from shardwise.launcher.config import Tokens
from shardwise.launcher.signature import answer_signature, poll_signature, same

_MAX_BODY_BYTES = 1 << 16
_MAX_DIGITS = 9  # of a length; Python reads no number of thousands
_TIMEOUT_SECONDS = 10.0
_CONNECTION_SECONDS = 30.0  # of a whole connection: what drips is never silent for long


class Board(Protocol):
    """What the server asks of the leader, from any thread."""

    def status(self) -> dict[str, Any]:
        """How the run stands."""

    def metrics(self) -> bytes:
        """The same in Prometheus' text format."""

    def request(self, word: str) -> None:
        """Pass on a "save" or a "stop"."""

    def heard(self, poll: dict[str, Any]) -> dict[str, Any] | None:
        """Take a follower's word, and answer it; None where it looks for another leader."""


class Server:
    """The listening server, in threads."""

    def __init__(self, listen: str, tokens: Tokens, ready: Callable[[], bool], board: Board | None) -> None:
        """Listen at "ip:port", OSError where it is taken; only host 0 has a board."""
        address, port = listen.rsplit(":", 1)
        self._server = _Listener((address, int(port)), tokens, ready, board)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="http", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Listener(ThreadingHTTPServer):
    request_queue_size = 4096  # the followers of a big gang come all at once, and who finds no place waits a second
    daemon_threads = True
    block_on_close = False

    def __init__(self, where: tuple[str, int], tokens: Tokens, ready: Callable[[], bool], board: Board | None) -> None:
        super().__init__(where, _Handler)
        self.tokens, self.ready, self.board = tokens, ready, board
        self._began: dict[socket, float] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection, in a thread."""
        self._began[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Leave a connection."""
        self._began.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End the connections that have lasted too long; called several times a second."""
        least = time.monotonic() - _CONNECTION_SECONDS
        for connection in [connection for connection, began in list(self._began.items()) if began < least]:
            with suppress(OSError):  # it has just come to its end
                connection.shutdown(SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a peer that has gone; an error of our own is a traceback in the log."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_SECONDS

    def do_GET(self) -> None:
        """Answer a reader."""
        if self.path == "/ready":
            self._ready()
            return
        if not self._allowed(self.server.tokens.status):
            return
        match self.path, self.server.board:
            case _, None:
                self._refuse(HTTPStatus.NOT_FOUND, "ask host 0")
            case "/status", board:
                self._json(board.status())
            case "/metrics", board:
                self._send(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", board.metrics())
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, "there are /ready, /status and /metrics")

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
            return
        if not self._allowed(self.server.tokens.status):
            return
        match self.path, self.server.board:
            case _, None:
                self._refuse(HTTPStatus.NOT_FOUND, "ask host 0")
            case ("/save" | "/stop") as path, board:
                board.request(path[1:])
                self._json({}, HTTPStatus.ACCEPTED)
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, "there are /save and /stop")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is the standard library's
        """Say nothing: the run's own output is what people read."""

    def _ready(self) -> None:
        if self.server.ready():
            self._send(HTTPStatus.OK, "text/plain", b"ready\n")
        else:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"joining\n")

    def _poll(self, body: bytes) -> None:
        token, board = self.server.tokens.gang, self.server.board
        signature = poll_signature(token, body)
        if not same(self.headers.get(SIGNATURE, ""), signature):
            self._refuse(HTTPStatus.UNAUTHORIZED, "expected a signature with the gang's token")
        elif board is None:
            self._refuse(HTTPStatus.NOT_FOUND, "ask host 0")
        elif (answer := board.heard(json.loads(body))) is None:
            self._refuse(HTTPStatus.CONFLICT, "this is another leader")
        else:
            raw = json.dumps(answer).encode()
            signed = {SIGNATURE: answer_signature(token, signature, raw)}
            self._send(HTTPStatus.OK, "application/json", raw, signed)

    def _allowed(self, token: str) -> bool:
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if hmac.compare_digest(given, f"Bearer {token}".encode()):
            return True
        self._refuse(HTTPStatus.UNAUTHORIZED, "expected the token of this path: Authorization: Bearer ...")
        return False

    def _refuse(self, status: HTTPStatus, words: str) -> None:
        self._json({"error": words}, status)

    def _json(self, content: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(status, "application/json", json.dumps(content).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
