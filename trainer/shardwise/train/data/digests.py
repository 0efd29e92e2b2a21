"""Content digests of data files, remembered so that an unchanged corpus is not read again at each start.

The memo is one JSON file keyed by address. It only saves time: a lost or unreadable memo costs a read of the data.
"""

import hashlib
import json
import os
import tempfile
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

from shardwise.protocol.errors import DataError
from shardwise.protocol.text import size
from shardwise.train.data.files import DataFile, read_blocks, read_raw_blocks
from shardwise.train.data.sources import TEXT, file_kind, head_of

EMPTY_DIGEST = hashlib.sha256().hexdigest()
_UNMARKED = "-unmarked"
_THREADS = 8
SETTLED_SECONDS = 2.0
"""A file written twice within the resolution of its clock can keep its stamp; git's "racy" entries are the same."""

_Memo = dict[str, list[str]]


def file_digests(
    files: Sequence[DataFile], *, memo_path: Path, report: Callable[[str], None], beat: Callable[[], None]
) -> tuple[str, ...]:
    """Return the digest of each file (`Digest.hexdigest`); beat from threads after each block.

    Raise DataError for a file that cannot be read, and for an empty one that the job names in full.
    """
    memo = _load(memo_path)
    unknown = [file for file in files if memo.get(file.url, ["", ""])[0] != known_by(file)]
    if unknown:
        report(f"reading {len(unknown):,} data files, {size(sum(file.size_bytes for file in unknown))}")
    started_seconds = time.time()
    with ThreadPoolExecutor(_THREADS) as pool:
        fresh = dict(zip((file.url for file in unknown), pool.map(partial(_digest, beat=beat), unknown), strict=True))
    settled_seconds = started_seconds - SETTLED_SECONDS
    settled = {
        file.url: [known_by(file), fresh[file.url]] for file in unknown if file.modified_seconds < settled_seconds
    }
    if settled:
        _save(memo_path, _load(memo_path) | settled)
    digests = tuple(fresh.get(file.url) or memo[file.url][1] for file in files)
    refuse_empty(files, digests)
    return digests


def refuse_empty(files: Sequence[DataFile], digests: Sequence[str]) -> None:
    """Raise DataError for an empty file that the job names in full."""
    for file, digest in zip(files, digests, strict=True):
        if file.named and digest == EMPTY_DIGEST:
            raise DataError(f"{file.url!r} is empty; expected text. Take it out of the paths, or write to it.")


def known_by(file: DataFile) -> str:
    """Return what a memo knows a file by: another for a text than releases wrote that read its mark as text."""
    return f"{file.stamp}{_UNMARKED}" if file_kind(file) == TEXT else file.stamp


class Digest:
    """The digest of one file, from its stored blocks."""

    def __init__(self, file: DataFile) -> None:
        """Begin with no block."""
        self._file, self._sha256, self._head = file, hashlib.sha256(), b""

    def update(self, block: bytes) -> None:
        """Take the next block."""
        self._sha256.update(block)
        self._head = (self._head + block[: len(BOM_UTF8)])[: len(BOM_UTF8)]

    def hexdigest(self) -> str:
        """Return the sha256; that of a text with a byte order mark says that it was read without."""
        return self._sha256.hexdigest() + (_UNMARKED if self.mark_bytes() else "")

    def mark_bytes(self) -> int:
        """Return the size of the byte order mark that a text begins with; 0 without one, and of other files."""
        if file_kind(self._file) != TEXT:
            return 0
        head = self._head
        if self._file.suffixes[1]:
            with closing(read_blocks(self._file)) as blocks:
                head = head_of(blocks)
        return len(BOM_UTF8) if head.startswith(BOM_UTF8) else 0


def _digest(file: DataFile, beat: Callable[[], None]) -> str:
    digest = Digest(file)
    for block in read_raw_blocks(file):
        digest.update(block)
        beat()
    return digest.hexdigest()


def _load(memo_path: Path) -> _Memo:
    try:
        memo = json.loads(memo_path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return memo if isinstance(memo, dict) else {}


def _save(memo_path: Path, memo: _Memo) -> None:
    memo_path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=memo_path.parent, prefix=memo_path.name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            json.dump(memo, handle)
        Path(temporary).replace(memo_path)
    except BaseException:
        Path(temporary).unlink()
        raise
