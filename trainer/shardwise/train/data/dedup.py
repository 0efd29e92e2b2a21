"""Leave out documents that an earlier one equals: hashes of all of them, and a search for those that came before.

The order is that of the sources, their files by address, and their lines or rows. Two documents are equal if 128 bits
of BLAKE2b of their text are.

    <scans>/<id>.hashes         HASH_BYTES for each line or row of some files, all 0 where there is no document
    <dedup>/removed-<n>.rows    little-endian int64, ascending: lines or rows of the whole corpus that are left out

The hashes are searched by buckets of about BUCKET_DOCUMENTS, each by itself: a task holds about 80 bytes a document of
one bucket, 0.7 GiB, however large the corpus is.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.job.rounding import num_parts
from shardwise.protocol.errors import DataError
from shardwise.train.data.files import DataFile
from shardwise.train.data.folder import Folder
from shardwise.train.data.sources import Document, documents

HASH_BYTES = 16
BUCKET_DOCUMENTS = 1 << 23
_ROW_DTYPE = np.dtype("<i8")
_SALT = b"shardwise dedup"


class Hashes(NamedTuple):
    """A file of hashes in the folder of scans."""

    name: str
    num_rows: int


@dataclass(frozen=True, kw_only=True)
class DedupTask:
    """Bucket `number` of `num_buckets` to search. `hashes` are of the whole corpus, in order, in the folder `scans`."""

    number: int
    num_buckets: int
    hashes: tuple[Hashes, ...]
    scans: str
    folder: str

    @property
    def num_bytes(self) -> int:
        """Return how much is read."""
        return sum(each.num_rows for each in self.hashes) * HASH_BYTES


class Removed(NamedTuple):
    """The rows of the corpus that are left out, in the files of a folder."""

    folder: str
    num_buckets: int

    def within(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the rows [row] from `first` up to `stop`, in no order."""
        folder = Folder(self.folder)
        found = [_Rows(folder, _name(number)).within(first, stop) for number in range(self.num_buckets)]
        return np.concatenate([np.empty(0, np.int64), *found])

    def number_within(self, first: int, stop: int) -> int:
        """Return the number of rows from `first` up to `stop` that are left out."""
        folder = Folder(self.folder)
        rows = [_Rows(folder, _name(number)) for number in range(self.num_buckets)]
        return sum(bisect_left(each, stop) - bisect_left(each, first) for each in rows)


def dedup_tasks(hashes: Sequence[Hashes], scans: str, folder: str) -> list[DedupTask]:
    """Return the tasks that search a corpus."""
    num_buckets = max(1, num_parts(sum(each.num_rows for each in hashes), BUCKET_DOCUMENTS))
    return [
        DedupTask(number=number, num_buckets=num_buckets, hashes=tuple(hashes), scans=scans, folder=folder)
        for number in range(num_buckets)
    ]


def write_hashes(path: Path, files: Sequence[DataFile], text_field: str, beat: Callable[[], None]) -> list[int]:
    """Write the hashes of the documents of files into a new file; return the number of rows [file]."""
    counts = []
    with path.open("wb") as handle:
        for file in files:
            num_rows = 0
            for document in documents(file, text_field):
                handle.write(bytes((document.row - num_rows) * HASH_BYTES) + _hash(document))
                num_rows = document.row + 1
                beat()
            counts.append(num_rows)
    return counts


def do_dedup(task: DedupTask, beat: Callable[[], None]) -> tuple[int, None]:
    """Find the rows of a bucket that are left out, unless that was done; return the bucket's number."""
    folder, scans = Folder(task.folder), Folder(task.scans)
    if folder.size(_name(task.number)) is None:
        folder.write(_name(task.number), _repeated(task, scans, beat).astype(_ROW_DTYPE).tobytes())
    return task.number, None


def _repeated(task: DedupTask, scans: Folder, beat: Callable[[], None]) -> NDArray[np.int64]:
    """Return the rows [row] of a bucket whose hash an earlier row has, ascending."""
    kept, rows, base = [np.empty((0, 2), np.uint64)], [np.empty(0, np.int64)], 0
    for each in task.hashes:
        content = scans.read(each.name)
        if content is None or len(content) != each.num_rows * HASH_BYTES:
            raise DataError(
                f"{scans.url}/{each.name} is gone or cut short; expected the hashes of documents. Delete the folder "
                f"{scans.url!r} and give the same command again: they are made anew."
            )
        pairs = np.frombuffer(content, "<u8").reshape(-1, 2)
        mine = np.flatnonzero((pairs[:, 0] % np.uint64(task.num_buckets) == task.number) & pairs.any(axis=1))
        kept.append(pairs[mine])
        rows.append(base + mine)
        base += each.num_rows
        beat()
    hashes, found = np.concatenate(kept), np.concatenate(rows)
    order = np.lexsort((found, hashes[:, 1], hashes[:, 0]))
    sorted_hashes = hashes[order]
    repeats = (sorted_hashes[1:] == sorted_hashes[:-1]).all(axis=1)
    return np.sort(found[order][1:][repeats])


class _Rows(Sequence[int]):
    """The rows in a file, of which a search reads a few."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder, self._name = folder, name
        self._count = (folder.size(name) or 0) // _ROW_DTYPE.itemsize

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return int(self._read(index, index + 1)[0])

    def within(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the rows [row] from `first` up to `stop`."""
        return self._read(bisect_left(self, first), bisect_left(self, stop))

    def _read(self, begin: int, end: int) -> NDArray[np.int64]:
        if begin == end:
            return np.empty(0, np.int64)
        content = self._folder.read(self._name, begin * _ROW_DTYPE.itemsize, end * _ROW_DTYPE.itemsize)
        return np.frombuffer(content or b"", _ROW_DTYPE)


def _hash(document: Document) -> bytes:
    digest = blake2b(digest_size=HASH_BYTES, salt=_SALT)
    for part in document.parts():
        digest.update(part)
    return digest.digest()


def _name(number: int) -> str:
    return f"removed-{number:05d}.rows"
