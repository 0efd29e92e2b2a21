"""Which files of a host's folder have a copy in the run directory's bucket (`run_copy.py`)."""

import os
from collections.abc import Iterator
from pathlib import Path

from shardwise.protocol.contract import PROGRAMS

_KEY_BYTES = 1024  # the longest name in S3 and GCS


def names_in(directory: Path, url: str) -> Iterator[str]:
    """Yield every file that a bucket can have. What begins with a dot, or ends as a part, is in the making.

    A program may leave other things in the folder too: sockets, pipes, names in no alphabet. They end no run.
    """
    for folder, folders, files in os.walk(directory):
        folders[:] = [each for each in folders if each != PROGRAMS]
        for file in files:
            path = Path(folder) / file
            name = str(path.relative_to(directory))
            is_whole = not file.startswith(".") and not file.endswith(".partial")
            if is_whole and _has_a_key(f"{url}/{name}") and path.is_file() and os.access(path, os.R_OK):
                yield name


def _has_a_key(url: str) -> bool:
    return url.isprintable() and len(url.encode()) <= _KEY_BYTES
