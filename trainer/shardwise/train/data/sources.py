"""Documents from data files: a text file is one document, a line of a .jsonl file is one document.

It neither tokenises nor keeps anything. A text file is given in parts and never held whole; a JSONL document is held
whole, one at a time.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

from shardwise.job.spec.data import Source
from shardwise.protocol.errors import DataError
from shardwise.train.data.chat import conversation_of
from shardwise.train.data.files import DataFile, read_blocks

_SPLIT_SALT = b"shardwise split"
_GIVEN_CHARS = 60
_DECODER = json.JSONDecoder()
CONVERSATION = ""
"""In place of a text field: a line is a conversation (`shardwise.train.data.chat`). No job can name this field."""


class Document(NamedTuple):
    """One document: where it is, and its bytes as non-empty parts in order (`parts` may be called again)."""

    where: str
    parts: Callable[[], Iterator[bytes]]


def documents(file: DataFile, text_field: str) -> Iterator[Document]:
    """Yield the documents of one file in order; those without a byte of text are left out.

    Raise DataError for a file that cannot be read, a .json file, and a JSONL line that is not UTF-8, not a JSON
    object, or has no string in `text_field`.
    """
    if file_kind(file) == "jsonl":
        return line_documents(read_blocks(file), file.url, text_field)
    return _text_document(file)


def file_kind(file: DataFile) -> str:
    """Return how the file's content is understood: "text" or "jsonl"."""
    suffix = file.suffixes[0]
    if suffix == ".json":
        raise DataError(
            f"{file.url!r} is a .json file; expected .jsonl (one JSON object a line) or text. "
            "Write one object a line and name it .jsonl, or give the path of a text file."
        )
    return "jsonl" if suffix == ".jsonl" else "text"


def field_of(source: Source) -> str:
    """Return the text field of a source's lines, or CONVERSATION."""
    return source.text_field if source.chat_template is None else CONVERSATION


def is_held_out(document: Document, fraction: float) -> bool:
    """Return whether the document is held out: its own content decides, so no other document matters."""
    return fraction > 0 and place_in_split(document.parts()) < fraction * 2**64


def place_in_split(parts: Iterable[bytes]) -> int:
    """Return a number of 64 bits that a document's content decides: it is held out if that is below the fraction."""
    digest = hashlib.blake2b(digest_size=8, salt=_SPLIT_SALT)
    for part in parts:
        digest.update(part)
    return int.from_bytes(digest.digest(), "big")


def _text_document(file: DataFile) -> Iterator[Document]:
    with closing(read_blocks(file)) as blocks:
        first, second = next(blocks, None), next(blocks, None)
    if first is None:
        return
    if second is None:
        yield _whole_document(file.url, first)
    else:
        yield Document(where=file.url, parts=lambda: read_blocks(file))


def _whole_document(where: str, text: bytes) -> Document:
    return Document(where=where, parts=lambda: iter((text,)))


def line_documents(blocks: Iterable[bytes], url: str, text_field: str, *, first_line: int = 1) -> Iterator[Document]:
    """Yield the documents of whole lines of JSONL, which are given in blocks; `first_line` numbers the first."""
    for number, line in enumerate(_lines(blocks), start=first_line):
        if line.strip():
            where = f"{url}, line {number}"
            text = _text_of(line, text_field, where)
            if text:
                yield _whole_document(where, text)


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    pending: list[bytes] = []
    for block in blocks:
        first, *rest = block.split(b"\n")
        pending.append(first)
        if rest:
            yield b"".join(pending)
            yield from rest[:-1]
            pending = [rest[-1]]
    yield b"".join(pending)


def _text_of(line: bytes, text_field: str, where: str) -> bytes:
    expected = f"expected a JSON object with a string in {text_field!r}"
    try:
        value = _DECODER.decode(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start} of the line is not UTF-8; {expected} in UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}), given {_shown(line)}; {expected}.") from error
    if text_field == CONVERSATION:
        return conversation_of(value, where)
    if not isinstance(value, dict):
        raise DataError(f"{where}: given {_shown(line)}; {expected}.")
    if not isinstance(value.get(text_field), str):
        has = ", ".join(repr(key) for key in sorted(value)) or "none"
        raise DataError(f"{where}: no string in {text_field!r} (its fields: {has}); {expected}. Set textField.")
    try:
        return str(value[text_field]).encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: half a surrogate pair at character {error.start}; {expected}.") from error


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", errors="replace").strip()
    return repr(text if len(text) <= _GIVEN_CHARS else text[:_GIVEN_CHARS] + "...")
