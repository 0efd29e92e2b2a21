"""Decompress a stream block by block: gzip, zstd, or neither. It knows no files and no addresses."""

import gzip
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Protocol, cast

import zstandard

BLOCK_BYTES = 1 << 20
# A block of 128 KiB may take four bytes, and the library returns at once all that its input holds: 32 MiB at most.
_ZSTD_INPUT_BYTES = 1 << 10
_ZSTD_MAX_WINDOW_BYTES = 1 << 31


class Readable(Protocol):
    """What gives its next bytes."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, at most `size`; none at the end."""


class CorruptZstdError(Exception):
    """A zstd file that ends inside a frame or does not decode."""


def plain_blocks(raw: Readable) -> Iterator[bytes]:
    """Yield what is there, in non-empty blocks of at most BLOCK_BYTES."""
    while block := raw.read(BLOCK_BYTES):
        yield block


def _cut(blocks: Iterable[bytes], size: int) -> Iterator[bytes]:
    return (block[at : at + size] for block in blocks for at in range(0, len(block), size))


def _gzip_blocks(raw: Readable) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=cast("IO[bytes]", raw)) as stream:
        yield from plain_blocks(stream)


def _zstd_blocks(raw: Readable) -> Iterator[bytes]:
    # The library's own stream reader takes a truncated file for a whole one, hence frame by frame.
    decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
    frame = None
    for piece in _cut(plain_blocks(raw), _ZSTD_INPUT_BYTES):
        data = piece
        while data:
            frame = frame or decoder.decompressobj()
            try:
                block = frame.decompress(data)
            except zstandard.ZstdError as error:
                raise CorruptZstdError(str(error)) from error
            if block:
                yield block
            data, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise CorruptZstdError("it ends inside a frame")


DECOMPRESSORS: dict[str, Callable[[Readable], Iterator[bytes]]] = {".gz": _gzip_blocks, ".zst": _zstd_blocks}
"""By suffix."""
