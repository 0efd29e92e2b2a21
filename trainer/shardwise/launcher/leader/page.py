"""The page of a live run, made when somebody asks for it and then kept for a while."""

import threading
import time
from pathlib import Path

from shardwise.page.curves import Metrics
from shardwise.page.gather import gather
from shardwise.page.render import render
from shardwise.protocol.contract import METRICS
from shardwise.protocol.run_status import RunStatus

_LEAST_SECONDS = 5.0
_SHARE = 0.002  # of one processor's time, however often it is asked for, and so of a step's


class PageMaker:
    """Makes the page. The last one is kept for 5 seconds, and for longer if it took more than 10 milliseconds to make.

    Of the metrics only what is new is read, for a long run has hundreds of megabytes of them.
    """

    def __init__(self, directory: Path, url: str | None) -> None:
        self._directory, self._url = directory, url
        self._lock = threading.Lock()
        self._metrics: Metrics | None = None
        self._page, self._until = b"", 0.0

    def made(self, status: RunStatus) -> bytes:
        """Return the page with this status, or an earlier one; from any thread, one of which makes it."""
        with self._lock:
            began = time.monotonic()
            if began >= self._until:
                self._metrics = self._metrics or Metrics(self._directory / METRICS)
                began = time.monotonic()  # the first look at the metrics happens once
                self._page = render(gather(self._directory, url=self._url, live=status, metrics=self._metrics)).encode()
                ended = time.monotonic()
                self._until = ended + max(_LEAST_SECONDS, (ended - began) / _SHARE)
            return self._page
