"""A wire between a process and the API server that a test can freeze: connections stay open, nothing comes through."""

import socket
import threading
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import yaml


class Wire:
    """Listens on this machine and passes bytes on, both ways, until it is frozen."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        self._to = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._flows = threading.Event()
        self._flows.set()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        """Pass nothing on from now on."""
        self._flows.clear()

    def kubeconfig(self, original: Path, folder: Path) -> Path:
        """The same access, through this wire."""
        content = yaml.safe_load(original.read_text())
        content["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        path = folder / "through-the-wire.kubeconfig"
        path.write_text(yaml.safe_dump(content))
        return path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._flows.set()
        for each in [self._listener, *self._sockets]:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed: the test is over
                return
            far = socket.create_connection(self._to)
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self._flows.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one side is gone
            source.close()
            sink.close()
