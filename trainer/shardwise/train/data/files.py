"""Find data files and read their bytes through fsspec: local paths, gs://, s3://, memory://, .gz and .zst.

It knows nothing of documents, tokens or the cache. A file is never held whole: it is read in blocks.
"""

import gzip
import json
import os
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem

from shardwise.job.paths import absolute_glob, is_url
from shardwise.protocol.errors import DataError, ShardwiseError
from shardwise.protocol.storage import in_words, reason_of, with_retries
from shardwise.train.data.compression import BLOCK_BYTES, DECOMPRESSORS, CorruptZstdError, plain_blocks
from shardwise.train.data.globs import local_files
from shardwise.train.data.steady import Steady

_SAVED_STATE = "state.json"


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A file that holds data, as it was when it was found.

    `url` is an absolute local path or an address with its protocol. `stamp` differs whenever the content may differ
    (size and modification time, or what the remote store says of its object); `modified_seconds` is that time, 0 where
    the stamp does not rest on a clock. `named` tells a path that was written out from one that a glob matched.
    """

    url: str
    size_bytes: int
    stamp: str
    modified_seconds: float
    named: bool

    @property
    def suffixes(self) -> tuple[str, str]:
        """Return the format and the compression suffix in lower case, e.g. (".jsonl", ".gz") or (".txt", "")."""
        url = self.url.lower()
        # The query of a web address is no part of a name; of a path and an object it is.
        path = PurePosixPath(urlsplit(url).path if url.startswith(("http://", "https://")) else url)
        if path.suffix in DECOMPRESSORS:
            return PurePosixPath(path.stem).suffix, path.suffix
        return path.suffix, ""


def find_files(patterns: Iterable[str]) -> tuple[DataFile, ...]:
    """Return the files that the patterns match, each once, sorted by address.

    A pattern is a path, a glob (`*`, `?`, `[]`, and `**` for any number of folders), or a folder of `datasets`. A file
    of this machine to which several paths lead, through links or written otherwise, has the first of its addresses.
    Raise DataError for a pattern that matches no file, a folder, or storage that cannot be reached.
    """
    found: dict[str, DataFile] = {}
    for pattern in patterns:
        for file in _match(pattern):
            real = file.url if is_url(file.url) else os.path.realpath(file.url)
            # A file that the job names must not be empty.
            found[real] = min(found.get(real, file), file, key=lambda each: (not each.named, each.url))
    return tuple(sorted(found.values(), key=lambda each: each.url))


def read_blocks(file: DataFile) -> Generator[bytes, None, None]:
    """Yield the decompressed content in non-empty blocks of about BLOCK_BYTES; DataError if it cannot be read."""
    decompress = DECOMPRESSORS.get(file.suffixes[1], plain_blocks)
    with reading(file.url), closing(Steady(file.url)) as raw:
        yield from decompress(raw)


def read_raw_blocks(file: DataFile) -> Iterator[bytes]:
    """Yield the stored content in non-empty blocks of BLOCK_BYTES; DataError if it cannot be read."""
    with reading(file.url), closing(Steady(file.url)) as raw:
        yield from plain_blocks(raw)


def fetch(url: str, to: Path, *, missing_ok: bool = False) -> None:
    """Copy a file as it is stored to this machine; DataError if it cannot be read, or is not there and must be."""

    def copy() -> None:
        filesystem, path = fsspec.core.url_to_fs(url)
        if _is_file(filesystem, path) or not missing_ok:
            filesystem.get_file(path, str(to))

    with reading(url):
        with_retries(copy)


def read_range(file: DataFile, start: int, stop: int) -> Generator[bytes, None, None]:
    """Yield the stored bytes from `start` up to `stop`, in non-empty blocks; DataError if they cannot be read."""
    with reading(file.url), closing(Steady(file.url, start)) as raw:
        while start < stop and (block := raw.read(min(BLOCK_BYTES, stop - start))):
            start += len(block)
            yield block


def changed_meanwhile(file: DataFile) -> DataError:
    """Return the error of a file that somebody writes to."""
    return DataError(
        f"{file.url!r} changed while it was being tokenised; expected files that nobody writes to. Wait until they are "
        "complete, and start again."
    )


def has_changed(file: DataFile) -> bool:
    """Return whether the file looks different from when it was found. Raise DataError if it is gone."""

    def stamp() -> str:
        filesystem, path = fsspec.core.url_to_fs(file.url)
        filesystem.invalidate_cache()  # fsspec keeps listings, and would show the file as it was
        return _data_file(filesystem, path, named=file.named).stamp

    with reading(file.url):
        return with_retries(stamp) != file.stamp


def _match(pattern: str) -> list[DataFile]:
    with reading(pattern):
        return with_retries(partial(_found, pattern))


def _found(pattern: str) -> list[DataFile]:
    filesystem, path = fsspec.core.url_to_fs(pattern)
    if _is_file(filesystem, path):
        return [_data_file(filesystem, path, named=True)]
    if filesystem.isdir(path):
        return [_data_file(filesystem, inside, named=False) for inside in _saved_dataset(filesystem, path, pattern)]
    matches = _matches(filesystem, path if is_url(pattern) or pattern[:1] == "~" else absolute_glob(pattern))
    if not matches:
        raise DataError(
            f"no file matches {pattern!r} (looked for {_address(filesystem, path)}); expected the path of at least "
            "one file, a glob such as 'data/**/*.txt', or an address such as 'gs://bucket/*.jsonl'."
        )
    return [_data_file(filesystem, match, named=False, properties=matches[match]) for match in matches]


def _is_file(filesystem: Any, path: str) -> bool:
    """Return whether it is a file; raise what keeps the storage from saying so, which fsspec's own `isfile` hides."""
    if isinstance(filesystem, LocalFileSystem):
        return Path(path).is_file()
    try:
        return bool(filesystem.info(path)["type"] == "file")
    except (FileNotFoundError, PermissionError):  # who may not ask for an object of any name may yet list some
        return False


def _matches(filesystem: Any, path: str) -> dict[str, Mapping[str, Any]]:
    """Return the files that a glob matches, and what the listing says of each."""
    if isinstance(filesystem, LocalFileSystem):
        return {match: {} for match in local_files(path)}
    _let_walk_raise(filesystem)
    found: dict[str, Mapping[str, Any]] = filesystem.glob(path, detail=True)
    # Not a look at each: a bucket's client sends a request for it, or goes through the whole listing again.
    files = (match for match, properties in found.items() if properties["type"] == "file")
    return {match: found[match] for match in files if not match.endswith("/")}  # which stands for a folder


def _let_walk_raise(filesystem: Any) -> None:
    """Let its walk raise what keeps a folder from being listed, at any depth.

    fsspec passes such a folder over, and data would be fewer without a word; what asks it to raise is handed to no
    folder below the first. Still passed over: what is gone.
    """

    def judge(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    name = "_walk" if isinstance(filesystem, AsyncFileSystem) else "walk"
    setattr(filesystem, name, partial(getattr(type(filesystem), name), filesystem, on_error=judge))


def _saved_dataset(filesystem: Any, path: str, pattern: str) -> list[str]:
    """Return the files of a folder that `Dataset.save_to_disk` of Hugging Face's `datasets` has written."""
    try:
        state = json.loads(filesystem.cat_file(f"{path}/{_SAVED_STATE}"))
        return [f"{path}/{each['filename']}" for each in state["_data_files"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        splits = [entry for entry in filesystem.ls(path, detail=False) if filesystem.isfile(f"{entry}/{_SAVED_STATE}")]
    if splits:
        names = ", ".join(repr(f"{pattern.rstrip('/')}/{entry.rstrip('/').rpartition('/')[2]}") for entry in splits)
        raise DataError(f"data path {pattern!r} is a folder of several splits; expected one of them: {names}.")
    raise DataError(
        f"data path {pattern!r} is a folder; expected a file, a glob, or a folder that `save_to_disk` of Hugging Face "
        f"datasets has written. Write {pattern.rstrip('/') + '/**'!r} for every file in it."
    )


def _data_file(filesystem: Any, path: str, *, named: bool, properties: Mapping[str, Any] | None = None) -> DataFile:
    url = _address(filesystem, path)
    if isinstance(filesystem, LocalFileSystem):
        status = Path(path).stat()
        size_bytes, modified_seconds = status.st_size, status.st_mtime
        stamp = f"{size_bytes}:{status.st_mtime_ns}"
    else:
        if properties is None or _remote_stamp(properties) is None:  # a web server's listing has names alone
            properties = filesystem.info(path)
        size_bytes, tag, modified_seconds = int(properties.get("size") or 0), _remote_stamp(properties), 0.0
        if tag is None and url.startswith(("http://", "https://")):  # never settled: its digest is made anew
            tag, modified_seconds = f"{size_bytes}:{properties.get('Last-Modified')}", float("inf")
        stamp = tag or str(filesystem.ukey(path))
    return DataFile(url=url, size_bytes=size_bytes, stamp=stamp, modified_seconds=modified_seconds, named=named)


def _remote_stamp(properties: Mapping[str, Any]) -> str | None:
    """Return the entity tag, if the store gives one: other properties differ between a listing and a request."""
    return next((f"etag:{value}" for name, value in properties.items() if name.lower() == "etag" and value), None)


def _address(filesystem: Any, path: str) -> str:
    return path if isinstance(filesystem, LocalFileSystem) else str(filesystem.unstrip_protocol(path))


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Turn whatever a storage back end raises into a DataError or StorageError that names the file.

    Every fsspec back end has exception classes of its own, so the net is wide; it is held under input and output only.
    """
    try:
        yield
    except ShardwiseError:
        raise
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _damaged(url, "gzip", error) from error
    except CorruptZstdError as error:
        raise _damaged(url, "zstd", error) from error
    except Exception as error:
        words = (
            f"cannot read {url!r}: {reason_of(error)}. Expected a readable file; check the address, "
            "the permissions and, for remote storage, the credentials."
        )
        raise in_words(error, words, DataError) from error


def _damaged(url: str, format_name: str, error: Exception) -> DataError:
    return DataError(
        f"{url!r} is not a whole {format_name} file: {error}. Expected what its suffix says; "
        "copy or compress the file again."
    )
