"""A stand-in for an API server: it answers as a test says, for what a real one does at rare moments only."""

import json
import threading
from collections.abc import Callable
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from shardwise.job.document import write_document

Answer = tuple[int, Any]
"""An HTTP status, and a text, what is sent as JSON, or a `Log`."""
_OK = 200


class Log(list[tuple[str, str]]):
    """The lines of a pod's log, each with its time, which is sent where the query asks for it."""

    def sent(self, query: str) -> str:
        """Return it as text, without the lines that are older than the query asks for."""
        asked = dict(parse_qsl(query))
        since = datetime.fromisoformat(asked.get("sinceTime", "2000-01-01T00:00:00Z"))
        lines = [(at, line) for at, line in self if datetime.fromisoformat(at) >= since]
        return "".join(f"{at} {line}\n" if "timestamps" in asked else f"{line}\n" for at, line in lines)


class Cut(str):
    """A text of which one byte more is announced than is sent."""

    __slots__ = ()


SILENCE: Answer = (0, "")
"""The connection ends without an answer."""


def kubeconfig(path: Path, url: str, **more: Any) -> Path:
    """Write a kubeconfig with one cluster, one user and the context `there` in the namespace `team`."""
    context = {"cluster": "c", "user": "u", "namespace": "team"}
    config = {
        "kind": "Config",
        "current-context": "there",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "there", "context": context}],
        **more,
    }
    path.write_text(write_document(config), encoding="utf-8")
    return path


class StandInServer:
    """It listens for the length of a `with` statement, and hands each request's path, without a query, to `answer`."""

    def __init__(self, answer: Callable[[str], Answer]) -> None:
        """Nothing is asked before the block begins."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, said = answer(urlsplit(self.path).path)
                said = said.sent(urlsplit(self.path).query) if isinstance(said, Log) else said
                if (status, said) == SILENCE:
                    return
                body = said.encode() if isinstance(said, str) else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) + isinstance(said, Cut)))
                self.end_headers()
                self.wfile.write(body)

            def do_PATCH(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,)).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def job(phase: str, **status: object) -> Answer:
    """Return a job that the operator has looked at."""
    return _OK, {"metadata": {"generation": 1}, "status": {"phase": phase, "observedGeneration": 1, **status}}
