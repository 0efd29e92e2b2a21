"""A scripted HTTP server in the API server's place, for faults that a real one does not show on demand.

It knows nothing of Kubernetes: it answers lists and watches with what the test laid out, in that order, and writes down
what it was asked.
"""

import json
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import yaml


class Ending(Enum):
    """How a watch ends once its events are sent."""

    ORDERLY = "the server closes it"
    CUT = "the connection breaks"
    SILENT = "nothing more comes, and the connection stays"


@dataclass
class Answer:
    """A plain answer."""

    body: Any = field(default_factory=dict)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Events:
    """The answer to a watch; a string is sent as it stands."""

    events: list[dict[str, Any] | str] = field(default_factory=list)
    ending: Ending = Ending.SILENT


def configmap(name: str, version: int, *, uid: str = "", text: str = "") -> dict[str, Any]:
    """A ConfigMap as a server would send it."""
    metadata = {"namespace": "ns", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": text}}


def event(kind: str, obj: dict[str, Any]) -> dict[str, Any]:
    """An event of a watch."""
    return {"type": kind, "object": obj}


def listing(*objects: dict[str, Any], version: int, token: str = "") -> Answer:
    """A page of a list; `token` says that there are more."""
    metadata = {"resourceVersion": str(version)} | ({"continue": token} if token else {})
    return Answer({"kind": "List", "metadata": metadata, "items": list(objects)})


class ScriptedServer:
    """Answers what is laid out, the last of it again and again."""

    def __init__(self) -> None:
        self.lists: deque[Answer] = deque()
        self.watches: deque[Answer | Events] = deque()
        self.asked: list[tuple[str, str, dict[str, str]]] = []  # method, path, query
        self.closing = threading.Event()
        self._server = _Listener(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def kubeconfig(self, folder: Path) -> str:
        """A kubeconfig that leads to it."""
        path = folder / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                    "users": [{"name": "u", "user": {"token": "secret-word"}}],
                }
            )
        )
        return str(path)

    def watched_from(self) -> list[str]:
        """The versions that watches were asked from, in order."""
        return [query["resourceVersion"] for _, _, query in list(self.asked) if "watch" in query]

    def num_lists(self) -> int:
        """How often a list was begun."""
        return sum("watch" not in query and "continue" not in query for _, _, query in list(self.asked))

    def answer(self, method: str, path: str, query: dict[str, str]) -> Answer | Events:
        """Take the next answer."""
        self.asked.append((method, path, query))
        if "/leases" in path:
            return Answer({"message": "there is no election here"}, 503)
        answers: deque[Any] = self.watches if "watch" in query else self.lists
        taken: Answer | Events = answers.popleft() if len(answers) > 1 else answers[0]
        return taken

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, script: ScriptedServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer whatever is asked, of any method."""
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.server.script.answer(self.command, parts.path, query)
        with suppress(BrokenPipeError, ConnectionResetError):  # who asked has gone
            if isinstance(answer, Answer):
                self._plain(answer)
            else:
                self._events(answer)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815  the names are the standard library's

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  as above
        """Say nothing."""

    def _plain(self, answer: Answer) -> None:
        body = answer.body.encode() if isinstance(answer.body, str) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _events(self, answer: Events) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in _chunks(answer.events):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        self.wfile.flush()
        if answer.ending is Ending.ORDERLY:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.close_connection = True
        if answer.ending is Ending.SILENT:
            self.server.script.closing.wait()


def _chunks(events: Iterable[dict[str, Any] | str]) -> Iterable[bytes]:
    """Each event in two chunks, because a chunk is no line."""
    for line in events:
        whole = (line if isinstance(line, str) else json.dumps(line) + "\n").encode()
        half = max(1, len(whole) // 2)
        yield from filter(None, (whole[:half], whole[half:]))
