"""Host 0's HTTP: how a run stands, and requests to it. Every request carries the run's token.

    GET /status    JSON, for people and tools        GET /metrics   the same for Prometheus
    POST /save     save, and go on                   POST /stop     save, then stop
    POST /gang     a follower says that it is there, and hears which epoch to join

Called by the leader. It runs in threads of its own, so a slow reader delays nothing; it holds no state, and answers
from what the leader last made known.
"""

import hmac
import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, Self

_MAX_BODY_BYTES = 1 << 16
_TIMEOUT_SECONDS = 10.0


class Board(Protocol):
    """What the server asks of the leader, from any thread."""

    def status(self) -> dict[str, Any]:
        """How the run stands."""

    def metrics(self) -> bytes:
        """The same in Prometheus' text format."""

    def request(self, word: str) -> None:
        """Pass on a "save" or a "stop"."""

    def heard(self, poll: dict[str, Any]) -> dict[str, Any]:
        """Take a follower's word, and answer it."""


class Server:
    """The listening server, in threads."""

    def __init__(self, address: str, port: int, token: str, board: Board) -> None:
        """Listen; OSError where the port is taken."""
        self._server = _Listener((address, port), token, board)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="http", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, where: tuple[str, int], token: str, board: Board) -> None:
        super().__init__(where, _Handler)
        self.authorization = f"Bearer {token}".encode()
        self.board = board


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_SECONDS

    def do_GET(self) -> None:
        """Answer a reader."""
        if not self._allowed():
            return
        match self.path:
            case "/status":
                self._json(self.server.board.status())
            case "/metrics":
                self._send(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", self.server.board.metrics())
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, "there are /status and /metrics")

    def do_POST(self) -> None:
        """Take a request."""
        given = self.headers.get("Content-Length") or "0"
        length = int(given) if given.isascii() and given.isdecimal() else _MAX_BODY_BYTES + 1
        if length > _MAX_BODY_BYTES:
            self.close_connection = True
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {_MAX_BODY_BYTES} bytes")
            return
        body = self.rfile.read(length)
        if not self._allowed():
            return
        match self.path:
            case "/save" | "/stop":
                self.server.board.request(self.path[1:])
                self._json({}, HTTPStatus.ACCEPTED)
            case "/gang":
                self._gang(body)
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, "there are /save and /stop")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is the standard library's
        """Say nothing: the run's own output is what people read."""

    def _gang(self, body: bytes) -> None:
        try:
            poll = json.loads(body)
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "expected a JSON object")
            return
        self._json(self.server.board.heard(poll))

    def _allowed(self) -> bool:
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if hmac.compare_digest(given, self.server.authorization):
            return True
        self._refuse(HTTPStatus.UNAUTHORIZED, "expected the run's token: Authorization: Bearer ...")
        return False

    def _refuse(self, status: HTTPStatus, words: str) -> None:
        self._json({"error": words}, status)

    def _json(self, content: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(status, "application/json", json.dumps(content).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
