"""A document in pieces that are encoded on their own, so that it need not be held whole.

A piece ends after the last newline of each PIECE_BYTES or, where there is none, between two characters.
"""

from collections.abc import Iterable, Iterator

from shardwise.protocol.errors import DataError

PIECE_BYTES = 1 << 20


def cut(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a document. What begins at a cut is cut as it is within the whole document."""
    pending = b""
    for part in parts:
        pending += part
        start = 0
        while len(pending) - start > PIECE_BYTES:
            end = _cut_point(pending, start)
            yield pending[start:end]
            start = end
        pending = pending[start:]
    if pending:
        yield pending


def _cut_point(content: bytes, start: int) -> int:
    limit = start + PIECE_BYTES
    newline = content.rfind(b"\n", start, limit)
    if newline >= 0:
        return newline + 1
    while limit > start + 1 and content[limit] & 0xC0 == 0x80:  # inside a UTF-8 character
        limit -= 1
    return limit


def check_utf8(piece: bytes, offset: int, where: str) -> None:
    """Raise DataError at the first byte of a piece that is no UTF-8; `offset` is where the piece begins in `where`."""
    try:
        piece.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: byte {offset + error.start} is not UTF-8 ({error.reason}); expected UTF-8 text, which a "
            "tokenizer.json needs. Convert the file, leave it out of the paths, or use tokenizer: byte."
        ) from error
