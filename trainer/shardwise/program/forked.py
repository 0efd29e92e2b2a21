"""A child that the script has forked, such as a helper that writes a file: it has no part in the run.

It inherits the exit handlers of the run and of JAX, the hook for errors, and all connections: by its end it would speak
for its parent. So it ends as a worker of multiprocessing does: the exit handlers that it has registered itself run,
those that it has inherited do not, and nothing of JAX is taken down.
"""

import atexit
import signal
import sys
from collections.abc import Callable
from types import TracebackType

from shardwise.program import endings, exits

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def end_apart(hook: Hook) -> None:
    """Have this process, which was just forked, end so; `hook` shows an error that nothing catches."""

    def failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        exits.give(128 + signal.SIGINT if issubclass(kind, KeyboardInterrupt) else 1)
        hook(kind, error, trace)

    exits.went_on()
    sys.excepthook = failed
    atexit.register(_end)  # the last one there is now, so it comes before all that were inherited


def _end() -> None:
    error = exits.given()
    endings.leave(exits.code_of(error) if error else 0)
