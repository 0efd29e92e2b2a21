"""Locks between processes of one machine, which the kernel frees when their holder dies.

A lock file is never deleted: a process that waits on a deleted one would guard nothing.
"""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_LOOK_SECONDS = 0.2


@contextmanager
def locked(path: Path, on_wait: Callable[[], None], look: Callable[[], None]) -> Iterator[None]:
    """Hold the lock; call `on_wait` once if another process has it, then wait for as long as that takes.

    `look` is called several times a second meanwhile, so that the other process can be followed.
    """
    with path.open("ab") as handle:
        if not _take(handle):
            on_wait()
            while not _take(handle):
                look()
                time.sleep(_LOOK_SECONDS)
        yield


@contextmanager
def try_locked(path: Path) -> Iterator[bool]:
    """Hold the lock if no other process does; yield whether it is held."""
    with path.open("ab") as handle:
        yield _take(handle)


def _take(handle: IO[bytes]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
