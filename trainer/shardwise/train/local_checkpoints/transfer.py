"""The files of local checkpoints between hosts: each trainer serves those in its host's folder, and fetches others'.

    GET /step-00000120/arrays/params.norm.weight/c.0    one file, for whoever has the token

The token is of one attempt and follows from the gang's, which itself never travels. What comes back is believed no
more than what is read from a disk: the reader holds each chunk against its checksum and each array against its digest.
"""

import hmac
import http.client
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from shardwise.protocol.threaded_server import ThreadedServer

_NUM_FILES_AT_ONCE = 8
_MOST_CONNECTIONS = 256
"""At once; anyone may connect, and each takes a handle of the trainer."""
_ROOM_SECONDS = 1.0
_PIECE_BYTES = 1 << 20
_SILENT_SECONDS = 30.0
"""A host that sends nothing for so long is given up; what lasts longer has a reason that another try does not mend."""
_NAME = re.compile(
    r"/step-\d{8,10}/(manifest\.json|COMMITTED|arrays/[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*/c(\.\d+)*)"
)
"""No name leads out of a checkpoint's folder."""


def token_of(gang_token: str, attempt: int) -> str:
    """Return what opens the files of one attempt's trainers."""
    return hmac.digest(gang_token.encode(), f"local/{attempt}".encode(), "sha256").hex()


class FileServer(ThreadedServer):
    """Serves the files below a folder."""

    request_queue_size = 1024  # several hosts may come at once; one that finds no place waits a second

    def __init__(self, address: str, folder: Path, token: str) -> None:
        """Listen at a free port of this ip; OSError if there is none."""
        super().__init__((address, 0), _Handler, name="local-files")
        self.folder, self.token = folder, token
        self._room = threading.Semaphore(_MOST_CONNECTIONS)

    @property
    def address(self) -> str:
        """Return "ip:port"."""
        host, port = self.server_address[:2]
        return f"{host!s}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, or close it if there is no room: no end of a run waits for that."""
        if self._room.acquire(timeout=_ROOM_SECONDS):
            super().process_request(request, client_address)
        else:
            super().shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        super().shutdown_request(request)
        self._room.release()


class _Handler(BaseHTTPRequestHandler):
    server: FileServer
    protocol_version = "HTTP/1.1"
    timeout = _SILENT_SECONDS

    def do_GET(self) -> None:
        """Send a file."""
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
            self._refuse(HTTPStatus.UNAUTHORIZED)
            return
        if not _NAME.fullmatch(self.path):
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        try:
            file = (self.server.folder / self.path[1:]).open("rb")
        except OSError:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        with file:
            num_bytes = file.seek(0, 2)
            file.seek(0)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", str(num_bytes))
            self.end_headers()
            self.wfile.flush()
            self.connection.sendfile(file)

    def _refuse(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing: the caller says what it could not have."""


def fetch_files(
    folder: Path, token: str, files: Mapping[str, Iterable[str]], moved: Callable[[], None] = lambda: None
) -> None:
    """Fetch files, {"ip:port": paths below its folder}, to the same paths below `folder`; a few at a time.

    `moved` is called after each file.

    Raises:
        OSError: one cannot be had or written; the others may be there.

    """
    with ThreadPoolExecutor(_NUM_FILES_AT_ONCE, thread_name_prefix="local-fetch") as pool:
        fetches = [
            pool.submit(_fetch_share, folder, token, address, share, moved)
            for address, names in files.items()
            for share in _shares(list(names))
        ]
    for each in fetches:
        each.result()


def _shares(names: list[str]) -> list[list[str]]:
    return [share for first in range(_NUM_FILES_AT_ONCE) if (share := names[first::_NUM_FILES_AT_ONCE])]


def _fetch_share(folder: Path, token: str, address: str, names: list[str], moved: Callable[[], None]) -> None:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=_SILENT_SECONDS)
    piece = memoryview(bytearray(_PIECE_BYTES))
    try:
        for name in names:
            _fetch(connection, folder / name, token, f"/{name}", piece)
            moved()
    except (OSError, http.client.HTTPException) as error:
        raise OSError(f"{address}: {str(error) or type(error).__name__}") from error
    finally:
        connection.close()


def _fetch(connection: http.client.HTTPConnection, into: Path, token: str, path: str, piece: memoryview) -> None:
    """Fetch one file by way of `piece`, so many bytes at a time."""
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    with connection.getresponse() as answer:
        if answer.status != HTTPStatus.OK:
            answer.read()
            raise OSError(f"{path[1:]}: {answer.status} {answer.reason}")
        into.parent.mkdir(parents=True, exist_ok=True)
        part = into.with_name(f".{into.name}.part")
        with part.open("wb", buffering=0) as file:
            while num_bytes := answer.readinto(piece):
                file.write(piece[:num_bytes])
        if part.stat().st_size != int(answer.headers["Content-Length"]):
            raise OSError(f"{path[1:]} was cut short")
    part.rename(into)  # a file that was cut short would look like one that is there
