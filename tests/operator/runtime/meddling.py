"""An HTTP proxy between an operator and a real API server, which a test has meddle with what passes.

The operator speaks plain HTTP to it; it speaks TLS to the API server, with the operator's own token where there is one,
else as the administrator. `Wire` freezes bytes; this one knows requests, answers and the events of a watch.
"""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import yaml
from tests.cluster.api_server import ApiServer

_SECONDS = 300.0
_UPSTREAM_ERRORS = (OSError, http.client.HTTPException)


@dataclass(frozen=True)
class Asked:
    """A request on its way."""

    method: str
    path: str

    @property
    def watches(self) -> bool:
        """Whether its answer has no end of its own."""
        return "watch=true" in self.path

    @property
    def writes(self) -> bool:
        """Whether it changes something of a job's: leases and events change nothing that a pass reads."""
        return self.method != "GET" and "/leases" not in self.path and "/events" not in self.path


@dataclass(frozen=True)
class Refusal:
    """An answer in the API server's place."""

    status: int
    retry_after: str = ""


class Meddler:
    """Passes everything on until a test says otherwise; what it says holds from the next request or event on."""

    def __init__(self, server: ApiServer) -> None:
        self.refuses: Callable[[Asked], Refusal | None] = lambda _: None
        """What is answered without the API server; None passes the request on."""
        self.written: Callable[[Asked], bool] = lambda _: True
        """Called when the API server has carried a write out; False keeps the answer and closes the connection."""
        self.event: Callable[[bytes], tuple[bytes, ...]] = lambda line: (line,)
        """What becomes of an event of a watch."""
        self.dead = False
        """Whether every request's connection is closed without an answer, as that of a process that has ended."""
        self.drip_seconds = 0.0
        """Between two parts of an answer, of eight."""
        self._upstream = urlsplit(server.client.url)
        pki = server.folder / "pki"
        self._plain = ssl.create_default_context(cafile=pki / "ca.crt")
        self._as_admin = ssl.create_default_context(cafile=pki / "ca.crt")
        self._as_admin.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._frozen: set[socket.socket] = set()
        self._open: set[socket.socket] = set()
        self._watched: set[socket.socket] = set()
        self._listener = _Listener(self)
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True)

    def kubeconfig(self, original: Path, folder: Path) -> Path:
        """The same access, through this proxy."""
        content = yaml.safe_load(original.read_text(encoding="utf-8"))
        content["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self._listener.server_address[1]}"}
        path = folder / f"meddled-{original.name}"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    def cut(self) -> None:
        """Break every connection that is open now."""
        for each in list(self._open):
            _shut(each)

    def cut_watches(self) -> None:
        """Break every watch that is under way."""
        for each in list(self._watched):
            _shut(each)

    def freeze(self) -> None:
        """Let nothing more come through the connections that are open now, and leave them open; new ones are well."""
        self._frozen |= self._open

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._frozen.clear()
        self._listener.shutdown()
        self._listener.server_close()
        self.cut()

    # ------------------------------------------------------------------------------------------ called by the handlers

    def opened(self, near: socket.socket) -> None:
        """A connection has come."""
        self._open.add(near)

    def watched(self, near: socket.socket) -> None:
        """Its watch begins."""
        self._watched.add(near)

    def closed(self, near: socket.socket) -> None:
        """It has gone."""
        self._open.discard(near)
        self._watched.discard(near)
        self._frozen.discard(near)

    def hold(self, near: socket.socket) -> None:
        """Return when something may come through this connection."""
        while near in self._frozen:
            time.sleep(0.05)

    def connect(self, *, admin: bool) -> http.client.HTTPSConnection:
        """A connection to the API server."""
        context = self._as_admin if admin else self._plain
        assert self._upstream.hostname
        return http.client.HTTPSConnection(
            self._upstream.hostname, self._upstream.port, timeout=_SECONDS, context=context
        )


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, meddler: Meddler) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.meddler = meddler


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        """Know the connection."""
        super().setup()
        self._far: http.client.HTTPSConnection | None = None
        self.server.meddler.opened(self.connection)

    def finish(self) -> None:
        """Forget it."""
        self.server.meddler.closed(self.connection)
        if self._far is not None:
            self._far.close()
        _shut(self.connection)

    def handle(self) -> None:
        """Answer what comes, until one of the two sides breaks off."""
        try:
            super().handle()
        except OSError:
            return

    def do_GET(self) -> None:
        """Pass a request on, of whatever method."""
        meddler, asked = self.server.meddler, Asked(self.command, self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        meddler.hold(self.connection)
        if meddler.dead:
            self.close_connection = True
            return
        if refusal := meddler.refuses(asked):
            self._refuse(refusal)
            return
        try:
            answer = self._ask(body)
            if asked.watches and answer.status < 400:
                self._watch(answer)
            else:
                self._answer(asked, answer)
        except _UPSTREAM_ERRORS:
            self.close_connection = True

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815  the names are the standard library's

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as above
        """Say nothing."""

    def _ask(self, body: bytes) -> http.client.HTTPResponse:
        if self._far is None:
            self._far = self.server.meddler.connect(admin="Authorization" not in self.headers)
        kept = ("Accept", "Content-Type", "Authorization", "User-Agent")
        headers = {name: self.headers[name] for name in kept if name in self.headers}
        self._far.request(self.command, self.path, body or None, headers)
        return self._far.getresponse()

    def _refuse(self, refusal: Refusal) -> None:
        self.send_response(refusal.status)
        if refusal.retry_after:
            self.send_header("Retry-After", refusal.retry_after)
        reason = {409: "Conflict", 410: "Expired", 429: "TooManyRequests"}.get(refusal.status, "InternalError")
        body = b'{"kind":"Status","reason":"%s","message":"a test says so","code":%d}' % (
            reason.encode(),
            refusal.status,
        )
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, asked: Asked, answer: http.client.HTTPResponse) -> None:
        data = answer.read()
        if asked.writes and answer.status < 400 and not self.server.meddler.written(asked):
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name in ("Content-Type", "Retry-After"):
            if value := answer.getheader(name):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        for part in _parts(data) if self.server.meddler.drip_seconds else (data,):
            self.server.meddler.hold(self.connection)
            self.wfile.write(part)
            time.sleep(self.server.meddler.drip_seconds)

    def _watch(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.server.meddler.watched(self.connection)
        while line := answer.readline():
            for each in self.server.meddler.event(line):
                self.server.meddler.hold(self.connection)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(each), each))
        self.wfile.write(b"0\r\n\r\n")


def _parts(data: bytes) -> Iterator[bytes]:
    size = max(1, len(data) // 8 + 1)
    return (data[start : start + size] for start in range(0, len(data), size))


def _shut(each: socket.socket) -> None:
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:  # it is shut
        return
