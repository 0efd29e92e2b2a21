"""Read ranges of a token store's parts: through memory maps, or from a bucket through a bounded cache on this host.

What is not asked for is never read. It knows no tokens: a range is bytes of a numbered file.
"""

import os
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise.job.rounding import num_parts
from shardwise.protocol.errors import DataError
from shardwise.protocol.storage import passing_over
from shardwise.train.data.folder import Folder
from shardwise.train.data.maps import kept_map

BLOCK_BYTES = 1 << 16
"""Rows come in a random order, so a request is about as large as the row that needs it."""
CACHE_BLOCKS = 1 << 14  # 1 GiB
_THREADS = 32  # a bucket answers in tens of milliseconds, whatever the range


class Range(NamedTuple):
    """Bytes `start` up to `stop` of a part."""

    part: int
    start: int
    stop: int


class Reader(Protocol):
    """The interface to the parts of a store."""

    def read(self, wanted: Range) -> bytes:
        """Return these bytes. Raise DataError for a part that is not what the index says."""

    def prefetch(self, wanted: Iterable[Range]) -> None:
        """Get what is soon read, all at once."""


class MappedReader:
    """The parts on a file system."""

    def __init__(self, folder: Path, name: Callable[[int], str], sizes_bytes: NDArray[np.int64]) -> None:
        self._folder, self._name, self._sizes_bytes = folder, name, sizes_bytes

    def read(self, wanted: Range) -> bytes:
        """Return these bytes; a part is mapped when it is first read."""
        return kept_map(self._open, wanted.part)[wanted.start : wanted.stop].tobytes()

    def prefetch(self, wanted: Iterable[Range]) -> None:
        """Do nothing: the kernel reads ahead."""

    def _open(self, part: int) -> NDArray[np.uint8]:
        path, expected = self._folder / self._name(part), int(self._sizes_bytes[part])
        found = path.stat().st_size if path.exists() else None
        if found != expected:
            raise damaged(str(path), found, expected)
        return np.memmap(path, np.uint8, mode="r")


class RangedReader:
    """The parts in a bucket, read in blocks of BLOCK_BYTES that are kept in `cache`."""

    def __init__(
        self, folder: Folder, name: Callable[[int], str], sizes_bytes: NDArray[np.int64], cache: "BlockCache"
    ) -> None:
        self._folder, self._name, self._sizes_bytes, self._cache = folder, name, sizes_bytes, cache
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="blocks")

    def read(self, wanted: Range) -> bytes:
        """Return these bytes, from the cache or the bucket."""
        first = wanted.start // BLOCK_BYTES
        content = b"".join(self._block(wanted.part, number) for number in _numbers(wanted))
        return content[wanted.start - first * BLOCK_BYTES : wanted.stop - first * BLOCK_BYTES]

    def prefetch(self, wanted: Iterable[Range]) -> None:
        """Get the blocks that the cache lacks, in threads."""
        blocks = {(each.part, number) for each in wanted for number in _numbers(each)}
        missing = sorted(key for key in blocks if key not in self._cache)
        list(self._pool.map(lambda key: self._block(*key), missing))

    def _block(self, part: int, number: int) -> bytes:
        kept = self._cache.get((part, number))
        if kept is not None:
            return kept
        size_bytes = int(self._sizes_bytes[part])
        start, stop = number * BLOCK_BYTES, min((number + 1) * BLOCK_BYTES, size_bytes)
        found = self._folder.read(self._name(part), start, stop)
        if found is None or len(found) != stop - start:
            raise damaged(f"{self._folder.url}/{self._name(part)}", None if found is None else start + len(found), stop)
        self._cache.put((part, number), found)
        return found


class BlockCache:
    """The blocks that were used last, in a file that no other process sees and that goes with this one.

    It takes at most `num_blocks` x BLOCK_BYTES of the disk of `folder`, and less until so much has been read.
    """

    def __init__(self, folder: Path, num_blocks: int = CACHE_BLOCKS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._descriptor, path = tempfile.mkstemp(dir=folder)
        Path(path).unlink()
        weakref.finalize(self, os.close, self._descriptor)
        self._slots: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()  # slot, size in bytes
        self._free: list[int] = []  # slots that were given out and hold no block
        self._num_blocks = num_blocks
        self._lock = Lock()

    def __contains__(self, key: tuple[int, int]) -> bool:
        """Return whether the block is here."""
        return key in self._slots

    def get(self, key: tuple[int, int]) -> bytes | None:
        """Return a block, or None if it is not here."""
        with self._lock:
            if key not in self._slots:
                return None
            self._slots.move_to_end(key)
            slot, size_bytes = self._slots[key]
            return os.pread(self._descriptor, size_bytes, slot * BLOCK_BYTES)

    def put(self, key: tuple[int, int], content: bytes) -> None:
        """Keep a block, in the place of the one that was not used for longest if there is no room.

        One that a full disk does not take is not kept: it is read from the bucket again.
        """
        with self._lock:
            if key in self._slots:
                return
            slot = self._slot()
            written = 0
            with passing_over():
                written = os.pwrite(self._descriptor, content, slot * BLOCK_BYTES)
            if written == len(content):  # a disk that is nearly full takes a part of a block, without an error
                self._slots[key] = (slot, written)
            else:
                self._free.append(slot)

    def _slot(self) -> int:
        if self._free:
            return self._free.pop()
        full = len(self._slots) == self._num_blocks
        return self._slots.popitem(last=False)[1][0] if full else len(self._slots)


def damaged(path: str, found: int | None, expected: int) -> DataError:
    """Return the error for a part that is gone or cut short."""
    given = "is missing" if found is None else f"has {found:,} bytes"
    return DataError(
        f"the token store's {path} {given}; expected {expected:,} bytes, as its index says. Give the same `shardwise "
        "tokenize` again: it makes what is missing."
    )


def _numbers(wanted: Range) -> range:
    return range(wanted.start // BLOCK_BYTES, num_parts(wanted.stop, BLOCK_BYTES))
