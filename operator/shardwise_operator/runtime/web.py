"""Small pages over HTTP: health and metrics, served in threads of their own.

There are no tokens and no writes; the network decides who may read them.
"""

import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from typing import Any, Self

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from shardwise_operator.runtime.manager import Manager

_TIMEOUT_SECONDS = 10.0
_PLAIN = "text/plain; charset=utf-8"

# A page is made for each request: its status, content type and body.
Page = Callable[[], tuple[HTTPStatus, str, bytes]]


def health_pages(manager: Manager, polls_stuck: Callable[[], list[str]]) -> dict[str, Page]:
    """Return `/healthz`, whether this process can work, and `/readyz`, whether its cache is filled."""
    return {
        "/healthz": lambda: _verdict(
            {
                "no longer watched": manager.dead(),
                "a pass stands still": manager.stuck(),
                "a poll stands still": polls_stuck(),
            }
        ),
        "/readyz": lambda: _verdict({"not listed yet": manager.unsynced()}),
    }


def metrics_pages(registry: CollectorRegistry) -> dict[str, Page]:
    """Return `/metrics`, in Prometheus' text format."""
    return {"/metrics": lambda: (HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry))}


class WebServer(ThreadingHTTPServer):
    """Serves pages while its block runs."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: str, pages: Mapping[str, Page]) -> None:
        """Listen at `address`, "host:port" with an empty host for all; OSError if the port is taken."""
        host, _, port = address.rpartition(":")
        if ":" in host:
            self.address_family = AF_INET6
        super().__init__((host.strip("[]"), int(port)), _Handler)
        self.pages = pages
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


class _Handler(BaseHTTPRequestHandler):
    server: WebServer
    timeout = _TIMEOUT_SECONDS

    def do_GET(self) -> None:
        """Answer with the page of this path."""
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            status, content_type, body = HTTPStatus.NOT_FOUND, _PLAIN, " ".join(self.server.pages).encode()
        else:
            status, content_type, body = page()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is the standard library's
        """Log nothing: probes come every few seconds."""


def _verdict(wrong: Mapping[str, list[str]]) -> tuple[HTTPStatus, str, bytes]:
    problems = [f"{problem}: {', '.join(what)}\n" for problem, what in wrong.items() if what]
    if problems:
        return HTTPStatus.SERVICE_UNAVAILABLE, _PLAIN, "".join(problems).encode()
    return HTTPStatus.OK, _PLAIN, b"ok\n"
