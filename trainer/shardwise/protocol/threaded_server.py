"""An HTTP server in threads of its own, for processes that have other things to do."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class ThreadedServer(ThreadingHTTPServer):
    """Listens from the start on, and answers while the block runs; a reader that is slow delays nothing."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], name: str) -> None:
        """Listen at an ip and a port, 0 for any free one; OSError if it is taken. `name` is the thread's."""
        super().__init__(address, handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a peer that has gone; log an error of our own with its traceback."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
