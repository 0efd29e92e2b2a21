"""The tasks of which a token store is made: reading some files, and tokenising one part.

A task may run in any process on any host that reaches the data and the store. It leaves one file, whole or not at all,
and does nothing if the file is there: so it may be killed, and done again, and done twice at once.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shardwise.protocol.errors import DataError
from shardwise.train.data.dedup import Hashes, Removed, write_hashes
from shardwise.train.data.digests import SETTLED_SECONDS, known_by
from shardwise.train.data.encodings import EncodingName
from shardwise.train.data.files import DataFile, changed_meanwhile, has_changed
from shardwise.train.data.folder import Folder
from shardwise.train.data.part_file import HEADER_BYTES, PartCounts, read_header, write_part
from shardwise.train.data.scan import Scan, Span, changed, scan, span_pieces
from shardwise.train.data.sources import file_kind
from shardwise.train.data.token_store import PART_SUFFIX, part_name
from shardwise.train.data.tokenise import Piece, encoded
from shardwise.train.data.tokenizer import Encoding, TokenArray

Batch = list[tuple[Piece, TokenArray]]
_FILES = 4096  # that one task reads
_THREADS = 16


@dataclass(frozen=True, kw_only=True)
class ScanTask:
    """Files to read: number `number` of the groups of a corpus. What is found is kept in `folder`.

    With a `hashed_field`, the key of the text in lines and rows, the hash of each document is kept there as well.
    """

    number: int
    files: tuple[DataFile, ...]
    part_bytes: int
    folder: str
    hashed_field: str | None

    @property
    def num_bytes(self) -> int:
        """Return how much is read."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, kw_only=True)
class PartTask:
    """A part to tokenise: number `number` of the store in `folder`. `fingerprint` is the tokenizer's.

    Of the rows of the whole corpus those in `removed` are left out; `file_rows` [span] are the first row of the span's
    file and the one behind its last.
    """

    number: int
    spans: tuple[Span, ...]
    file_rows: tuple[tuple[int, int], ...]
    removed: Removed | None
    folder: str
    text_field: str
    held_out: float
    tokenizer: EncodingName
    fingerprint: str

    @property
    def num_bytes(self) -> int:
        """Return how much of the corpus this is."""
        return sum(span.stop - span.start for span in self.spans)


def no_beat() -> None:
    """Tell nobody that a task gets on: what runs it is not watched."""


def scan_tasks(files: Sequence[DataFile], part_bytes: int, folder: str, hashed_field: str | None) -> list[ScanTask]:
    """Return the tasks that read the files of a corpus."""
    return [
        ScanTask(number=number, files=group, part_bytes=part_bytes, folder=folder, hashed_field=hashed_field)
        for number, group in enumerate(_groups(files, part_bytes))
    ]


def do_scan(task: ScanTask, beat: Callable[[], None]) -> tuple[int, list[Scan]]:
    """Return the number of the task and the scan of each file. What was found before is not read again."""
    folder = Folder(task.folder)
    seen = [[file.url, known_by(file)] for file in task.files]
    asked = [task.part_bytes, seen, *([] if task.hashed_field is None else [task.hashed_field])]
    name = f"{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:32]}.json"
    kept = folder.read(name)
    if kept is not None:
        scans = [Scan(*each) for each in json.loads(kept)]
        if task.hashed_field is None or folder.size(hashes_of(task, scans).name) is not None:
            return task.number, scans
    started_seconds = time.time()
    scans = [scan(file, task.part_bytes, beat) for file in task.files]
    if task.hashed_field is not None:
        scans = _with_hashes(task, scans, folder, task.hashed_field, beat)
    if all(file.modified_seconds < started_seconds - SETTLED_SECONDS for file in task.files):
        folder.write(name, json.dumps(scans).encode())
    return task.number, scans


def hashes_of(task: ScanTask, scans: Sequence[Scan]) -> Hashes:
    """Return where the hashes of a task's documents are: known by the contents of its files."""
    contents = [
        [found.digest, file_kind(file), file.suffixes[1]] for file, found in zip(task.files, scans, strict=True)
    ]
    digest = hashlib.sha256(json.dumps([contents, task.hashed_field]).encode()).hexdigest()
    return Hashes(f"{digest[:32]}.hashes", sum(found.num_rows for found in scans))


def make_part(task: PartTask, beat: Callable[[], None]) -> tuple[int, PartCounts, bool]:
    """Make a part, unless it is there; return its number, what it holds, and whether it was made now.

    Raise DataError for data that cannot be used, a file that changes meanwhile, and another tokenizer on this host.
    """
    tokenizer = _tokenizer(task.tokenizer, task.fingerprint)
    folder, name, dtype = Folder(task.folder), part_name(task.number), tokenizer.stored_dtype
    there = _counts(folder, name, folder.size(name), dtype.itemsize)
    if there is not None:
        return task.number, there, False
    with folder.creating(name) as path:
        batches = _beating(encoded(_pieces(task, tokenizer), tokenizer), beat)
        made = write_part(path, batches, dtype=dtype, end_of_text=tokenizer.end_of_text)
        if (file := changed(task.spans)) is not None:
            raise changed_meanwhile(file)
    return task.number, made, True


def parts_that_are_there(folder: Folder, itemsize: int, known: Sequence[PartCounts]) -> dict[int, PartCounts]:
    """Return what each part that is whole holds, by number. `known` is what an index says: the others are read."""
    names = {name: size for name, size in folder.sizes().items() if name.endswith(PART_SUFFIX)}
    sizes = {int(name.removesuffix(PART_SUFFIX).removeprefix("part-")): size for name, size in names.items()}
    found = {number: each for number, each in enumerate(known) if each.size_bytes(itemsize) == sizes.get(number)}
    left = sorted(sizes.keys() - found.keys())
    with ThreadPoolExecutor(_THREADS) as pool:
        counts = pool.map(lambda number: _counts(folder, part_name(number), sizes[number], itemsize), left)
        return found | {number: each for number, each in zip(left, counts, strict=True) if each is not None}


def _with_hashes(
    task: ScanTask, scans: Sequence[Scan], folder: Folder, text_field: str, beat: Callable[[], None]
) -> list[Scan]:
    with folder.creating(hashes_of(task, scans).name) as path:
        counts = write_hashes(path, task.files, text_field, beat)
        if (file := next(filter(has_changed, task.files), None)) is not None:
            raise changed_meanwhile(file)
    return [found._replace(num_rows=count) for found, count in zip(scans, counts, strict=True)]


def _pieces(task: PartTask, tokenizer: Encoding) -> Iterator[Piece]:
    # A range may begin behind the last document of its file: its rows are none, and not those of the next file.
    ranges = zip(task.spans, task.file_rows, strict=True)
    starts = [min(first + span.num_rows, stop) for span, (first, stop) in ranges]
    # All of the part at once: a look for the rows of one file takes dozens of requests to a bucket.
    _, end = task.file_rows[-1]
    removed = np.empty(0, np.int64) if task.removed is None else np.sort(task.removed.within(starts[0], end))
    for span, start, (first, stop) in zip(task.spans, starts, task.file_rows, strict=True):
        rows = removed[slice(*np.searchsorted(removed, [start, stop]))] - first
        yield from span_pieces(span, task.text_field, task.held_out, tokenizer, frozenset(rows.tolist()))


def _beating(batches: Iterator[Batch], beat: Callable[[], None]) -> Iterator[Batch]:
    for batch in batches:
        beat()
        yield batch


def _groups(files: Sequence[DataFile], part_bytes: int) -> Iterator[tuple[DataFile, ...]]:
    pending: list[DataFile] = []
    size_bytes = 0
    for file in files:
        pending.append(file)
        size_bytes += file.size_bytes
        if len(pending) == _FILES or size_bytes >= part_bytes:
            yield tuple(pending)
            pending, size_bytes = [], 0
    if pending:
        yield tuple(pending)


def _counts(folder: Folder, name: str, size_bytes: int | None, itemsize: int) -> PartCounts | None:
    """Return what a part of this size holds; None if it is not there, or not whole."""
    header = None if size_bytes is None else folder.read(name, 0, HEADER_BYTES)
    counts = None if header is None else read_header(header)
    return counts if counts is not None and counts.size_bytes(itemsize) == size_bytes else None


@lru_cache(maxsize=1)
def _tokenizer(name: EncodingName, fingerprint: str) -> Encoding:
    found = name.load()
    if found.fingerprint != fingerprint:
        raise DataError(
            f"tokenizer {name.path!r} is another one than where `shardwise tokenize` was started: given "
            f"{found.fingerprint}, expected {fingerprint}. Put the same file on every host, or in a bucket."
        )
    return found
