"""A bucket that does not answer as it should: moto's S3, in a server that looks at each request how it is to answer.

A process of its own, `python -m benchmarks.faults.bucket PORT FILE`; what is in the file, a `Mood`, holds from the
next request on.
"""

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.turns import ROOT

NAME = "bucket"
SLOW_SECONDS = 0.5
_ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>put there</Message></Error>"


class Mood(StrEnum):
    """How requests are answered."""

    GOOD = "good"
    SLOW = "slow"
    UNAVAILABLE = "503 SlowDown"
    FORBIDDEN = "403 AccessDenied"


class Bucket:
    """A bucket of which the mood can be changed."""

    def __init__(self, port: int, file: Path) -> None:
        """It is good."""
        self._port, self._file = port, file
        self.be(Mood.GOOD)

    def put(self, key: str, content: bytes = b"") -> None:
        """Write an object, or make the bucket itself where the key is empty."""
        connection = HTTPConnection("127.0.0.1", self._port)
        connection.request("PUT", f"/{NAME}/{key}".rstrip("/"), content)
        answer = connection.getresponse()
        assert answer.status == HTTPStatus.OK, answer.read()
        connection.close()

    def upload(self, folder: Path, prefix: str) -> None:
        """Write every file below a folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def be(self, mood: Mood) -> None:
        """Answer like this from now on."""
        part = self._file.with_suffix(".part")
        part.write_text(mood, encoding="utf-8")
        part.rename(self._file)


def variables(port: int) -> dict[str, str]:
    """What leads a trainer to it; nobody checks the key."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "unchecked",
        "AWS_SECRET_ACCESS_KEY": "unchecked",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


@contextmanager
def serving(port: int, folder: Path) -> Iterator[Bucket]:
    """An empty bucket at a port of this machine."""
    bucket = Bucket(port, folder / "mood")
    command = [sys.executable, "-m", "benchmarks.faults.bucket", str(port), str(folder / "mood")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        with server.stdin:  # its end is the server's
            assert server.stdout.readline(), "the bucket's server has not started"
            bucket.put("")
            yield bucket


def _moody(app: Callable[..., Iterable[bytes]], file: Path) -> Callable[..., Iterable[bytes]]:
    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        mood = Mood(file.read_text(encoding="utf-8"))
        if mood == Mood.SLOW:
            time.sleep(SLOW_SECONDS)
        if mood in (Mood.GOOD, Mood.SLOW):
            return app(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        body = _ERROR.format(code=mood.partition(" ")[2]).encode()
        start_response(mood, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]

    return answer


def _main() -> None:
    import threading  # noqa: PLC0415  only the server's process needs what follows

    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415  as above
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import make_server  # noqa: PLC0415  as above

    port, file = sys.argv[1:]
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = _moody(DomainDispatcherApplication(create_backend_app), Path(file))
    server = make_server("127.0.0.1", int(port), app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("serving", flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    _main()
