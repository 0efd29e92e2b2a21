"""What is read straight from an S3 bucket, and what is left to TensorStore."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import google_crc32c
import numpy as np
import pytest

from shardwise.train.checkpoint.objects import Objects

CONTENT = bytes(range(256)) * 4096


class _Server(ThreadingHTTPServer):
    """A bucket with one object, which answers as the test says; `asked` has the range and the port of each request."""

    daemon_threads = True
    status, sent = 206, len(CONTENT)

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, int]] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self.server.asked.append((self.headers["Range"], self.client_address[1]))
        first, last = (int(each) for each in self.headers["Range"].removeprefix("bytes=").split("-"))
        part = CONTENT[first : last + 1]
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        with suppress(ConnectionError):  # the reader may have closed it, having seen enough
            self.wfile.write(part[: self.server.sent])
        self.close_connection = self.server.sent < len(part)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    """It runs, and the environment leads to it."""
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_part_comes_with_its_checksum_and_what_follows(server: _Server) -> None:
    """From anywhere in the object, whatever its length; a connection serves one request after the other."""
    with Objects("bucket") as objects:
        for start, size in ((0, 1), (3, 700_001), (len(CONTENT) - 10, 6)):
            memory = np.zeros(size, np.uint8)
            assert objects.read("a/b", start, memory, 4) == (
                google_crc32c.value(CONTENT[start : start + size]),
                CONTENT[start + size : start + size + 4],
            )
            assert memory.tobytes() == CONTENT[start : start + size]

    assert next(asked for asked, _ in server.asked) == "bytes=0-4"
    assert len({port for _, port in server.asked}) == 1


@pytest.mark.parametrize(("status", "sent"), [(503, len(CONTENT)), (301, 0), (206, 300_000)])
def test_what_is_not_answered_plainly_is_left_to_others(server: _Server, status: int, sent: int) -> None:
    """A refusal, a redirect, a body that breaks off: None, and this bucket is asked no more."""
    server.status, server.sent = status, sent
    with Objects("bucket") as objects:
        assert objects.read("a", 0, np.zeros(600_000, np.uint8), 4) is None
        server.status, server.sent = 206, len(CONTENT)
        assert objects.read("a", 0, np.zeros(600_000, np.uint8), 4) is None

    assert len(server.asked) == 1


def test_an_object_that_ends_too_early_is_left_to_others(server: _Server) -> None:
    """The caller finds out by TensorStore how much there is, and refuses it with its name."""
    with Objects("bucket") as objects:
        assert objects.read("a", len(CONTENT) - 10, np.zeros(20, np.uint8), 4) is None

    assert len(server.asked) == 1


def test_a_proxy_is_left_to_others(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes past a proxy that the environment names."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    with Objects("bucket") as objects:
        assert objects.read("a", 0, np.zeros(20, np.uint8), 4) is None

    assert server.asked == []


def test_without_credentials_it_is_left_to_others(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorStore looks for them its own way, and reads a public bucket without any."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with Objects("bucket") as objects:
        assert objects.read("a", 0, np.zeros(20, np.uint8), 4) is None

    assert server.asked == []
