"""A registry on this machine that takes images and keeps their manifests: what `push` needs of the distribution API."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit


class Registry(ThreadingHTTPServer):
    """The server; blobs are checked against their digests and then forgotten."""

    daemon_threads = True

    def __init__(self) -> None:
        """Listen on a free port of this machine."""
        super().__init__(("127.0.0.1", 0), _Requests)
        self.manifests: dict[tuple[str, str], bytes] = {}
        self.blobs: set[str] = set()
        self.uploads: dict[str, hashlib._Hash] = {}

    @property
    def name(self) -> str:
        """What the names of its images begin with."""
        return f"localhost:{self.server_port}"


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Registry

    def do_GET(self) -> None:
        found = re.fullmatch(r"/v2/(.+)/manifests/(.+)", self.path)
        if found and found.groups() in self.server.manifests:
            self._answer(200, body=self.server.manifests[found[1], found[2]])
        else:
            self._answer(200 if self.path == "/v2/" else 404)

    def do_HEAD(self) -> None:
        digest = self.path.rpartition("/")[2]
        self._answer(200 if digest in self.server.blobs else 404)

    def do_POST(self) -> None:
        place = f"{urlsplit(self.path).path}{len(self.server.uploads)}"
        self.server.uploads[place] = hashlib.sha256()
        self._answer(202, {"Location": place})

    def do_PATCH(self) -> None:
        self.server.uploads[self.path].update(self._body())
        self._answer(202, {"Location": self.path})

    def do_PUT(self) -> None:
        url = urlsplit(self.path)
        found = re.fullmatch(r"/v2/(.+)/manifests/(.+)", url.path)
        body = self._body()
        if found:
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
            for reference in (found[2], digest):
                self.server.manifests[found[1], reference] = body
        else:
            upload = self.server.uploads[url.path]
            upload.update(body)
            (digest,) = parse_qs(url.query)["digest"]
            if digest != f"sha256:{upload.hexdigest()}":
                self._answer(400)
                return
            self.server.blobs.add(digest)
        self._answer(201, {"Docker-Content-Digest": digest})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name that http.server gives it
        """Keep quiet."""

    def _body(self) -> bytes:
        if "Content-Length" in self.headers:
            return self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Transfer-Encoding") != "chunked":
            return b""
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def registry() -> Iterator[Registry]:
    """Run one for a block."""
    with Registry() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
