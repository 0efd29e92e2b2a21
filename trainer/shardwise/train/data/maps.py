"""Memory maps of more files than a process may have open: the ones that were used last stay.

A map keeps its file open, and many systems grant a process 1,024 files, which a store of 70 GB has in parts alone.
"""

import resource
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

_MOST = 1024  # far below the maps that the kernel grants a process
_OF_FILES = 4  # one of so many open files is a map: the others are for sockets, and for files that are read and written


def _most() -> int:
    granted, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if granted == resource.RLIM_INFINITY else min(_MOST, granted // _OF_FILES)


@lru_cache(maxsize=_most())
def kept_map(open_map: Callable[[int], NDArray[Any]], number: int) -> NDArray[Any]:
    """Return the map that `open_map` makes of a file's number; all streams and stores of a process share the room."""
    return open_map(number)
