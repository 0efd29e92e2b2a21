"""The page of a live run, made when somebody asks for it and then kept for a while."""

import threading
import time
from pathlib import Path

from shardwise.page.gather import gather
from shardwise.page.render import render
from shardwise.protocol.run_status import RunStatus

_LEAST_SECONDS = 5.0
_SHARE = 0.02  # of one processor's time, however often it is asked for


class PageMaker:
    """Makes the page, of which the last one is kept for 5 seconds, and for longer if it took more than 0.1 to make."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._page, self._until = b"", 0.0

    def made(self, status: RunStatus) -> bytes:
        """Return the page with this status, or an earlier one; from any thread, one of which makes it."""
        with self._lock:
            began = time.monotonic()
            if began >= self._until:
                self._page = render(gather(self._directory, live=status)).encode()
                ended = time.monotonic()
                self._until = ended + max(_LEAST_SECONDS, (ended - began) / _SHARE)
            return self._page
