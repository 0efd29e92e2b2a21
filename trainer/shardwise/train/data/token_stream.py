"""One stream of tokens on disk: fixed-size token files and the ends of its documents, read through memory maps.

It knows neither keys nor locks nor markers; those are `cache`'s.

    <name>-00000.bin, -00001.bin, ...   little-endian uint16 or uint32, `tokens_per_file` each, the last one shorter
    <name>.ends                         little-endian int64 [document]: the position after each end-of-text
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.job.rounding import num_parts
from shardwise.train.data.maps import kept_map
from shardwise.train.data.tokenizer import TokenArray

_ENDS_DTYPE = np.dtype("<i8")
_WRITE_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class StreamLayout:
    """Where each token of a stream lies: its name, its sizes and how it is cut into files."""

    name: str
    dtype: str
    tokens_per_file: int
    num_tokens: int
    num_documents: int

    def file_sizes_bytes(self) -> dict[str, int]:
        """Return the size that every file of the stream must have, by file name."""
        itemsize = np.dtype(self.dtype).itemsize
        sizes = {_ends_name(self.name): self.num_documents * _ENDS_DTYPE.itemsize}
        for number, start in enumerate(range(0, self.num_tokens, self.tokens_per_file)):
            sizes[_file_name(self.name, number)] = min(self.tokens_per_file, self.num_tokens - start) * itemsize
        return sizes


class StreamWriter:
    """Appends documents to a new stream in an existing folder. Raises OSError, e.g. on a full disk."""

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        dtype: np.dtype[np.unsignedinteger[Any]],
        tokens_per_file: int,
        end_of_text: int,
    ) -> None:
        self._directory = directory
        self._name = name
        self._dtype = dtype
        self._tokens_per_file = tokens_per_file
        self._end_of_text = np.array([end_of_text], dtype)
        self._num_tokens = 0
        self._num_documents = 0
        self._tokens_file: BufferedWriter | None = None
        self._ends_file = _create(directory / _ends_name(name))

    @property
    def num_tokens(self) -> int:
        """Tokens appended so far."""
        return self._num_tokens

    def append(self, pieces: Sequence[tuple[TokenArray, bool]]) -> None:
        """Add pieces of documents in order: tokens [token], and whether the piece ends its document.

        Takes many at a time, because documents may be short and a call is not free.
        """
        if not pieces:
            return
        chunks = [chunk for tokens, ends in pieces for chunk in ((tokens, self._end_of_text) if ends else (tokens,))]
        lengths = np.fromiter((tokens.size + ends for tokens, ends in pieces), np.int64, len(pieces))
        ends_document = np.fromiter((ends for _, ends in pieces), np.bool_, len(pieces))
        document_ends = self._num_tokens + np.cumsum(lengths)[ends_document]
        self._ends_file.write(document_ends.astype(_ENDS_DTYPE).data)
        self._num_documents += document_ends.size
        self._write(np.concatenate(chunks, dtype=self._dtype))

    def finish(self) -> StreamLayout:
        """Bring everything to the disk and return the layout of what was written."""
        self._close_tokens_file()
        _sync_and_close(self._ends_file)
        return StreamLayout(
            name=self._name,
            dtype=self._dtype.str,
            tokens_per_file=self._tokens_per_file,
            num_tokens=self._num_tokens,
            num_documents=self._num_documents,
        )

    def abandon(self) -> None:
        """Close the files of a stream that is not to be finished; what they hold is not brought to the disk."""
        for handle in (self._tokens_file, self._ends_file):
            if handle is not None:
                handle.raw.close()

    def _write(self, tokens: TokenArray) -> None:
        while tokens.size:
            room = self._tokens_per_file - self._num_tokens % self._tokens_per_file
            if room == self._tokens_per_file:
                self._next_file()
            assert self._tokens_file is not None
            self._tokens_file.write(tokens[:room].data)
            self._num_tokens += min(room, tokens.size)
            tokens = tokens[room:]

    def _next_file(self) -> None:
        self._close_tokens_file()
        number = self._num_tokens // self._tokens_per_file
        self._tokens_file = _create(self._directory / _file_name(self._name, number))

    def _close_tokens_file(self) -> None:
        if self._tokens_file is not None:
            _sync_and_close(self._tokens_file)
            self._tokens_file = None


class TokenStream:
    """A finished stream, mapped into memory: what is not read is not loaded."""

    def __init__(self, directory: Path, layout: StreamLayout) -> None:
        self.num_tokens = layout.num_tokens
        self.num_documents = layout.num_documents
        self.document_ends: NDArray[np.int64] = _mapped(directory / _ends_name(layout.name), _ENDS_DTYPE)
        self._tokens_per_file = layout.tokens_per_file
        self._directory, self._name, self._dtype = directory, layout.name, np.dtype(layout.dtype)
        for number in range(num_parts(layout.num_tokens, layout.tokens_per_file)):
            kept_map(self._open, number)  # what is mapped stays readable, even if the folder is cleared up

    def prefetch(self, wanted: Iterable[tuple[int, int]]) -> None:
        """Do nothing: the kernel reads ahead."""

    def ends_within(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the ends of documents [document] from position `first` up to `stop`."""
        begin, end = np.searchsorted(self.document_ends, [first, stop])
        return self.document_ends[begin:end]

    def read(self, start: int, stop: int) -> NDArray[np.int32]:
        """Return the tokens [token] from position `start` up to `stop`; 0 <= start <= stop <= num_tokens."""
        assert 0 <= start <= stop <= self.num_tokens
        tokens = np.empty(stop - start, np.int32)
        filled = 0
        while filled < tokens.size:
            number, inside = divmod(start + filled, self._tokens_per_file)
            found = kept_map(self._open, number)[inside : inside + tokens.size - filled]
            tokens[filled : filled + found.size] = found
            filled += found.size
        return tokens

    def _open(self, number: int) -> NDArray[Any]:
        return _mapped(self._directory / _file_name(self._name, number), self._dtype)


def _file_name(name: str, number: int) -> str:
    return f"{name}-{number:05d}.bin"


def _ends_name(name: str) -> str:
    return f"{name}.ends"


def _mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    # An empty file cannot be mapped; an empty stream has an empty `.ends`.
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)


def _create(path: Path) -> BufferedWriter:
    return BufferedWriter(FileIO(path, "w"), _WRITE_BUFFER_BYTES)


def _sync_and_close(handle: BufferedWriter) -> None:
    handle.flush()
    os.fsync(handle.fileno())
    handle.close()
