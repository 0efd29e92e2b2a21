"""A folder of files that appear as a whole or not at all: on a file system that hosts share, or in a bucket.

On a file system a file is written beside its name, flushed and renamed; in a bucket it is one object. It knows nothing
of what the files mean.
"""

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from shardwise.protocol.errors import DataError, ShardwiseError
from shardwise.protocol.files import sync_directory
from shardwise.protocol.storage import in_words, reason_of, with_retries

_PARTIAL = ".partial"


class Folder:
    """A folder at a local path, gs://, s3:// or any other address that fsspec knows. It need not exist yet."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") or "/"
        with self._using("use"):
            self._filesystem: Any
            self._filesystem, path = fsspec.core.url_to_fs(self.url)
        self._path: str = path
        self.local = Path(path) if isinstance(self._filesystem, LocalFileSystem) else None
        """The folder, if it is on a file system."""

    def inside(self, name: str) -> "Folder":
        """Return a folder in this one."""
        return Folder(f"{self.url}/{name}")

    def absolute(self) -> "Folder":
        """Return the same folder by an address that holds in any working directory."""
        return self if self.local is None else Folder(str(self.local.absolute()))

    def exists(self) -> bool:
        """Return whether there is such a folder: in a bucket, whether anything lies in it."""
        with self._using("read"):
            return bool(with_retries(partial(self._filesystem.isdir, self._path)))

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """Return the bytes of a file from `start` up to `stop`; None if there is no such file."""
        read = partial(self._filesystem.cat_file, self._inside(name), start=start, end=stop)
        with self._using("read", name):
            try:
                return bytes(with_retries(read))
            except FileNotFoundError:
                return None

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if there is no such file."""
        with self._using("read", name):
            self._filesystem.invalidate_cache()  # fsspec keeps listings, and would show the folder as it was
            try:
                return int(with_retries(partial(self._filesystem.info, self._inside(name)))["size"])
            except FileNotFoundError:
                return None

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each file, by its name."""
        with self._using("list"):
            try:
                entries = with_retries(partial(self._filesystem.ls, self._path, detail=True, refresh=True))
            except FileNotFoundError:
                return {}
        return {entry["name"].rpartition("/")[2]: entry["size"] for entry in entries if entry["type"] == "file"}

    def write(self, name: str, content: bytes) -> None:
        """Make or replace a file; it is durable on return."""
        with self.creating(name) as path:
            path.write_bytes(content)

    @contextmanager
    def creating(self, name: str) -> Iterator[Path]:
        """Yield where to write a file that gets its name, or replaces the one that has it, at the end of the block."""
        if self.local is None:
            with self._scratch(name) as made:
                yield made
                with self._using("write", name):
                    with_retries(partial(self._filesystem.put_file, str(made), self._inside(name)))
            return
        with self._using("write", name, OSError, (FileNotFoundError,)):
            self.local.mkdir(parents=True, exist_ok=True)
            made = self.local / f"{name}.{secrets.token_hex(8)}{_PARTIAL}"
            try:
                yield made
                _rename(made, self.local / name)
            finally:
                made.unlink(missing_ok=True)

    def remove_partial(self) -> None:
        """Remove what writers that are dead have left half written. One that lives must have nothing left to write."""
        if self.local is not None:
            for left in self.local.glob(f"*{_PARTIAL}"):
                left.unlink(missing_ok=True)

    def _inside(self, name: str) -> str:
        return f"{self._path}/{name}"

    @contextmanager
    def _scratch(self, name: str) -> Iterator[Path]:
        """Yield where to write on this machine what goes to a bucket, and turn what that disk raises into our error."""
        try:
            with tempfile.TemporaryDirectory(prefix="sw-") as scratch:
                yield Path(scratch) / name
        except OSError as error:
            words = (
                f"cannot make {self.url}/{name} in {tempfile.tempdir or 'a temporary folder'!r} of this machine, where "
                f"a file is made before it goes to a bucket: {reason_of(error)}. Expected room for it; make room "
                "there, or name another folder in TMPDIR."
            )
            raise in_words(error, words, DataError) from error

    @contextmanager
    def _using(
        self,
        verb: str,
        name: str = "",
        raised: type[Exception] = Exception,
        passed: tuple[type[Exception], ...] = (),
    ) -> Iterator[None]:
        """Turn what a storage back end raises, each of which has classes of its own, into an error of ours."""
        try:
            yield
        except ShardwiseError:
            raise
        except passed:
            raise
        except raised as error:
            words = (
                f"cannot {verb} {f'{self.url}/{name}' if name else self.url!r}: {reason_of(error)}. "
                "Expected a folder on a file system or in a bucket; check the address, the room, the permissions and, "
                "for a bucket, the credentials."
            )
            raise in_words(error, words, DataError) from error


def _rename(made: Path, path: Path) -> None:
    try:
        with made.open("rb") as handle:
            os.fsync(handle.fileno())
        made.replace(path)
    except FileNotFoundError:
        # Another writer has found everything whole, with this file, and cleared up.
        if not path.exists():
            raise
    sync_directory(path.parent)
