"""One piece of work after the other in a thread, as saves are: the next one begins when the one before it is over."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

_LOOK_SECONDS = 0.5


class OneAtATime:
    """A thread for the work that `begin` is given; what goes wrong with it is raised by the next `wait` or `close`."""

    def __init__(self, name: str) -> None:
        """Start nothing yet; `name` is the thread's."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._pending: Future[None] | None = None
        self._moves = 0

    def begin(self, work: Callable[[], None]) -> None:
        """Do this in the thread. Call `wait` before."""
        self._pending = self._thread.submit(work)

    def moved(self) -> None:
        """Note that the work gets on; it calls this itself."""
        self._moves += 1

    def wait(self, beat: Callable[[], None] = lambda: None) -> None:
        """Wait until the work is done, and raise what went wrong; `beat` is called as it gets on."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        moves: int | None = None
        while wait([pending], timeout=_LOOK_SECONDS).not_done:
            if self._moves != moves:
                moves = self._moves
                beat()
        pending.result()

    def close(self) -> None:
        """Wait like `wait`, and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
