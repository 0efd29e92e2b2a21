"""Files that a command writes at its end: that they cannot be is found out before the work, and said in words."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from shardwise.protocol.errors import UsageError
from shardwise.protocol.storage import in_words


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write a file or a folder inside this block.

    Raises:
        StorageError: it cannot be written now, as on a full disk.
        UsageError: it cannot be written there at all.

    """
    try:
        yield
    except OSError as error:
        words = f"{path}: cannot be written ({error.strerror or error}); give a place that can be written"
        raise in_words(error, words, UsageError) from error


def check_new_file(path: Path) -> None:
    """Raise as `writing` if no new file can be made to take this path; leave nothing behind."""
    with writing(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        TemporaryFile(dir=path.parent).close()


def check_writable(path: Path) -> None:
    """Raise as `writing` if the file can neither be written as it is there nor be made; leave it as it is."""
    if not path.exists():
        check_new_file(path)
        return
    with writing(path):
        os.close(os.open(path, os.O_WRONLY))
