"""Wait for another process's lock on a file, but not without end: its holder may hang in the storage."""

import fcntl
import time
from collections.abc import Callable

_LOOK_SECONDS = 0.05


def lock_within(handle: int, *, seconds: float, tell_after: float, tell: Callable[[], None]) -> bool:
    """Lock an open file alone; return False if another process has held it for longer than `seconds`.

    `tell` is called once, after `tell_after` seconds. Raise OSError on a volume without locks.
    """
    since, told = time.monotonic(), False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - since
        else:
            return True
        if waited > seconds:
            return False
        if waited > tell_after and not told:
            tell()
            told = True
        time.sleep(_LOOK_SECONDS)
