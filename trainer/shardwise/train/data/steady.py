"""A file, here or in a bucket, that is read on after an error that passes."""

from contextlib import suppress
from functools import partial
from typing import IO

import fsspec

from shardwise.protocol.storage import with_retries

_REQUEST_BYTES = 8 << 20
"""What one request to a bucket asks for; some back ends would ask for far more than a range of a file."""


class Steady:
    """A file to read from a position on, which goes on where it was after an error that passes."""

    def __init__(self, url: str, position: int = 0) -> None:
        self._url, self._position = url, position
        self._handle: IO[bytes] | None = None

    @property
    def closed(self) -> bool:
        """Return False: what is closed is opened again by the next `read`."""
        return False

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def move_to(self, position: int) -> None:
        """Go on from another position."""
        self.close()
        self._position = position

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`; none at the end."""
        block = with_retries(partial(self._read, size))
        self._position += len(block)
        return block

    def close(self) -> None:
        """Close what is open."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _read(self, size: int) -> bytes:
        if self._handle is None:
            self._handle = _open(self._url)
            if self._position:
                self._handle.seek(self._position)
        try:
            return self._handle.read(size)
        except Exception:
            # The next try opens the file again: a handle after an error may be at any position.
            with suppress(Exception):
                self._handle.close()
            self._handle = None
            raise


def _open(url: str) -> IO[bytes]:
    filesystem, path = fsspec.core.url_to_fs(url)
    handle: IO[bytes] = filesystem.open(path, "rb", block_size=_REQUEST_BYTES)
    return handle
