"""A registry on this machine that takes images and keeps their manifests: what `push` needs of the distribution API."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit

_KEPT_BYTES = 1 << 20


class _Upload:
    """A blob on its way: its checksum, and its beginning."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()
        self.begin = b""

    def add(self, part: bytes) -> None:
        """Go on with the next bytes."""
        self.sha256.update(part)
        self.begin = (self.begin + part)[:_KEPT_BYTES] if len(self.begin) < _KEPT_BYTES else self.begin


class Registry(ThreadingHTTPServer):
    """The server; blobs are checked against their digests, and of each only the beginning is kept."""

    daemon_threads = True

    def __init__(self) -> None:
        """Listen on a free port of this machine."""
        super().__init__(("127.0.0.1", 0), _Requests)
        self.manifests: dict[tuple[str, str], bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.uploads: dict[str, _Upload] = {}

    @property
    def name(self) -> str:
        """What the names of its images begin with."""
        return f"localhost:{self.server_port}"


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Registry

    def do_GET(self) -> None:
        self._give(with_body=True)

    def do_HEAD(self) -> None:
        self._give(with_body=False)

    def _give(self, *, with_body: bool) -> None:
        found = re.fullmatch(r"/v2/(.+)/(manifests|blobs)/(.+)", self.path)
        if not found:
            self._answer(200 if self.path == "/v2/" else 404)
            return
        repository, kind, reference = found.groups()
        manifest = self.server.manifests.get((repository, reference)) if kind == "manifests" else None
        body = self.server.blobs.get(reference) if kind == "blobs" else manifest
        if body is None:
            self._answer(404)
            return
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}" if manifest else reference
        kinds = {"Content-Type": json.loads(manifest)["mediaType"]} if manifest else {}
        self._answer(200, {**kinds, "Docker-Content-Digest": digest}, body, with_body=with_body)

    def do_POST(self) -> None:
        place = f"{urlsplit(self.path).path}{len(self.server.uploads)}"
        self.server.uploads[place] = _Upload()
        self._answer(202, {"Location": place})

    def do_PATCH(self) -> None:
        self.server.uploads[self.path].add(self._body())
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
            upload.add(body)
            (digest,) = parse_qs(url.query)["digest"]
            if digest != f"sha256:{upload.sha256.hexdigest()}":
                self._answer(400)
                return
            self.server.blobs[digest] = upload.begin
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

    def _answer(
        self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"", *, with_body: bool = True
    ) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
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
