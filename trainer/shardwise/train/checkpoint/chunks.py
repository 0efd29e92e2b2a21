"""Read one chunk of an array's files into the memory that is meant for it, and check it.

    a file:   chunk, crc32c, chunk, crc32c ... index, crc32c
    index:    (offset, length) of every chunk in row-major order

as zarr3's sharding codec has it: offset and length are uint64, a crc32c is uint32, all little-endian. TensorStore
writes these files; it could read them too, with two more copies on the way (docs/decisions/0020). Memory is a numpy
array, since google_crc32c takes that and bytes, but no memoryview.
"""

import errno
import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import google_crc32c
import numpy as np

from shardwise.train.checkpoint.layout import Cell
from shardwise.train.checkpoint.manifest import ArrayEntry
from shardwise.train.checkpoint.objects import Objects, checksummed
from shardwise.train.checkpoint.store import Store

_PLACE = struct.Struct("<QQ")
_CHECKSUM_BYTES = 4
_REST_BYTES = _CHECKSUM_BYTES + _PLACE.size + _CHECKSUM_BYTES
"""What follows the chunk of a file with a single one."""
_LARGEST_START = 1 << 62
"""No file is so long, and the system's offsets are: an index may say anything, and still have a good checksum."""
_DAMAGE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
"""The system's errors for a file that is gone. All others, EIO too, mean that it cannot be read now."""


class Refusal(Exception):  # noqa: N818 - it never leaves the package: the caller sees a CheckpointError or the next one
    """Why one checkpoint cannot be used."""


class _File(Protocol):
    """A file of a checkpoint."""

    def read(self, start: int, memory: np.ndarray) -> tuple[int, bytes]:
        """Fill `memory` from byte `start` on; a negative `start` counts from the end.

        Return the crc32c of what came, and the four bytes behind it. A file that ends too early gives less of both.
        """


class _LocalFile:
    """A file on disk, read straight into its place."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, start: int, memory: np.ndarray) -> tuple[int, bytes]:
        if start < 0:
            start = max(0, os.fstat(self._descriptor).st_size + start)
        checksum, done = checksummed(
            memory, lambda piece, done: os.preadv(self._descriptor, [piece.data], start + done)
        )
        return checksum, os.pread(self._descriptor, _CHECKSUM_BYTES, start + done)


class _Object:
    """An object in a bucket, each part of it by a request: straight into its place, or else through TensorStore."""

    def __init__(self, store: Store, objects: Objects | None, step: int, name: str) -> None:
        self._store, self._objects, self._step, self._name = store, objects, step, name

    def read(self, start: int, memory: np.ndarray) -> tuple[int, bytes]:
        if start >= 0 and (found := self._straight(start, memory, _CHECKSUM_BYTES)):
            return found
        # Counted from the end, a part that ends with the object would end at 0, which is a slice's beginning.
        return _split(self._get(slice(start, start + memory.size + _CHECKSUM_BYTES or None)), memory)

    def _straight(self, start: int, memory: np.ndarray, num_more: int) -> tuple[int, bytes] | None:
        if self._objects is None:
            return None
        return self._objects.read(self._store.key(self._step, self._name), start, memory, num_more)

    def _get(self, part: slice) -> memoryview:
        content = self._store.read(self._step, self._name, part)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._name)
        return memoryview(content)


class _SmallObject(_Object):
    """An object with a single chunk, and so all of it by one request, with the chunk in its place before it is read."""

    def __init__(self, store: Store, objects: Objects | None, step: int, name: str, place: np.ndarray) -> None:
        super().__init__(store, objects, step, name)
        self._checksum, self._rest = self._straight(0, place, _REST_BYTES) or _split(self._get(slice(None)), place)

    def read(self, start: int, memory: np.ndarray) -> tuple[int, bytes]:
        if start < 0:
            return _split(memoryview(self._rest)[start:], memory)
        return (self._checksum, self._rest[:_CHECKSUM_BYTES]) if start == 0 else (0, b"")


def _split(content: memoryview, memory: np.ndarray) -> tuple[int, bytes]:
    """Fill `memory` with the beginning of `content`; return the crc32c of that, and the rest."""
    values = np.frombuffer(content[: memory.size], np.uint8)
    memory[: values.size] = values
    return google_crc32c.value(values), bytes(content[memory.size :])


def read_chunk(
    store: Store,
    objects: Objects | None,
    step: int,
    directory: str,
    entry: ArrayEntry,
    cell: Cell,
    memory: np.ndarray,
) -> None:
    """Fill `memory`, uint8[bytes of a chunk], with the chunk at `cell` of the grid of all chunks of an array.

    `objects` are those of `store`. Raise `Refusal` if its file is missing, is cut short or is not what was written, and
    OSError or TensorStore's ValueError if the store cannot be read.
    """
    per_file = [file // chunk for file, chunk in zip(entry.file_shape, entry.chunk_shape, strict=True)]
    name = ".".join(["c", *(str(place // count) for place, count in zip(cell, per_file, strict=True))])
    number = 0
    for place, count in zip(cell, per_file, strict=True):
        number = number * count + place % count
    index = np.empty(_PLACE.size * math.prod(per_file), np.uint8)
    only = memory if len(index) == _PLACE.size else None
    with _opened(store, objects, step, f"{directory}/{name}", only) as file:
        _fill(file, -index.size - _CHECKSUM_BYTES, index, f"the index of {name}")
        start, length = _PLACE.unpack_from(index.data, _PLACE.size * number)
        if length != memory.size + _CHECKSUM_BYTES:
            raise Refusal(f"{name} has a chunk of {length} bytes instead of {memory.size + _CHECKSUM_BYTES}")
        if start > _LARGEST_START:
            raise Refusal(f"{name} has a chunk at byte {start}, where no file has one")
        _fill(file, start, memory, name)


@contextmanager
def _opened(store: Store, objects: Objects | None, step: int, name: str, only: np.ndarray | None) -> Iterator[_File]:
    """Open a file; `only` is the place of its chunk, if it has but one."""
    path = store.local_file(step, name)
    try:
        if path is None:
            kind = _Object if only is None else partial(_SmallObject, place=only)
            yield kind(store, objects, step, name)
        else:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                yield _LocalFile(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        if error.errno not in _DAMAGE:
            raise
        file = name.rpartition("/")[2]
        raise Refusal(f"{file} is missing" if error.errno == errno.ENOENT else f"{file}: {error.strerror}") from error


def _fill(file: _File, start: int, memory: np.ndarray, name: str) -> None:
    checksum, stored = file.read(start, memory)
    if checksum.to_bytes(_CHECKSUM_BYTES, "little") != stored:
        raise Refusal(f"{name} is cut short or was changed: its crc32c is not the one that was written")
