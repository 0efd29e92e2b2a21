"""Documents from data files: a text file is one document, so is a line of JSONL, and a row of a Parquet or Arrow file.

It neither tokenises nor keeps anything. A text file is given in parts and never held whole; any other document is held
whole, one at a time.
"""

import hashlib
import json
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from shardwise.job.spec.data import Source
from shardwise.protocol.errors import DataError
from shardwise.train.data.chat import conversation_of
from shardwise.train.data.columns import ARROW, PARQUET, rows
from shardwise.train.data.files import DataFile, read_blocks, read_range
from shardwise.train.data.pairs import labelled_of, pair_of
from shardwise.train.data.prompts import chat_prompt_of, text_prompt_of
from shardwise.train.data.questions import question_of

_SPLIT_SALT = b"shardwise split"
_GIVEN_CHARS = 60
TEXT, JSONL = "text", "jsonl"
_PACKED = frozenset((".7z", ".br", ".bz2", ".lz4", ".lzma", ".rar", ".tar", ".tgz", ".xz", ".zip"))
_DECODER = json.JSONDecoder()
CONVERSATION = ""
"""In place of a text field: a line is a conversation (`shardwise.train.data.chat`). No job can name this field."""
PREFERENCES = "\0"
"""The same of a line that is a pair of answers (`shardwise.train.data.pairs`)."""
QUESTIONS = "\1"
"""The same of a line that is a question with choices (`shardwise.train.data.questions`)."""
LABELS = "\2"
"""The same of a line that is one answer with a label (`shardwise.train.data.pairs`)."""
JUDGED = {PREFERENCES: ("pairs of answers", "preferences"), LABELS: ("answers with labels", "labels")}
"""What lines of answers are called, and the field of a source that says so."""
PROMPTS, CHAT_PROMPTS = "\3", "\4"
"""The same of a line with a text or messages that a model completes (`shardwise.train.data.prompts`)."""

_OF_OBJECT: Mapping[str, Callable[[Any, str], bytes]] = {
    CONVERSATION: conversation_of,
    PREFERENCES: pair_of,
    QUESTIONS: question_of,
    LABELS: labelled_of,
    PROMPTS: text_prompt_of,
    CHAT_PROMPTS: chat_prompt_of,
}

_EXPECTED: Mapping[str, str] = {
    CONVERSATION: "expected conversations for chatTemplate: a .jsonl file with a list in messages",
    PREFERENCES: "expected pairs of answers for preferences: a .jsonl file with prompt, chosen and rejected",
    LABELS: "expected answers with labels: a .jsonl file with prompt, completion and label",
    QUESTIONS: "expected questions: a .jsonl file with prompt, choices and answer",
    PROMPTS: "expected prompts: a .jsonl file with prompt, and what the reward needs",
    CHAT_PROMPTS: "expected prompts for chatTemplate: a .jsonl file with prompt, and what the reward needs",
}


class Document(NamedTuple):
    """One document: where it is, and its bytes as non-empty parts in order (`parts` may be called again).

    `row` is the number of its line or row in the file, counted from 0.
    """

    where: str
    row: int
    parts: Callable[[], Iterator[bytes]]


def documents(file: DataFile, text_field: str) -> Iterator[Document]:
    """Yield the documents of one file in order; those without a byte of text are left out.

    Raise DataError for a file that cannot be read or is packed otherwise, a .json file, a JSONL line that is not UTF-8,
    not a JSON object, or has no string in `text_field`, a Parquet or Arrow file without that column, and, where the
    documents are conversations, a file of text.
    """
    if file_kind(file) == TEXT:
        return _text_document(file, text_field)
    return documents_within(file, text_field, start=0, stop=file.size_bytes, first_row=0)


def documents_within(file: DataFile, text_field: str, *, start: int, stop: int, first_row: int) -> Iterator[Document]:
    """Yield the documents of whole lines or rows in a range of a file's bytes; `first_row` numbers the first of them.

    Raise DataError as `documents` does.
    """
    kind = file_kind(file)
    if kind == JSONL:
        is_whole = start == 0 and stop == file.size_bytes
        blocks = read_blocks(file) if is_whole else read_range(file, start, stop)
        yield from _line_documents(blocks, file.url, text_field, first_row)
        return
    if text_field in _OF_OBJECT:
        raise DataError(f"{file.url!r} is a .{kind} file; {_EXPECTED[text_field]}. Write its rows as lines of JSON.")
    for row, content in rows(file, kind, text_field, start, stop, first_row):
        if content:
            yield _whole_document(f"{file.url}, row {row + 1}", row, content)


def file_kind(file: DataFile) -> str:
    """Return how the file's content is understood: TEXT, JSONL, PARQUET or ARROW."""
    suffix, compression = file.suffixes
    if suffix[1:] in (PARQUET, ARROW):
        if compression:
            raise DataError(
                f"{file.url!r} is a compressed {suffix} file; expected a plain one, in which columns are compressed. "
                "Unpack it."
            )
        return suffix[1:]
    if suffix in _PACKED:  # a tokenizer of bytes would learn the packing
        raise DataError(
            f"{file.url!r} is a {suffix} file; expected a plain file, or one that is compressed as .gz or .zst. "
            "Unpack it, or give paths that leave it out."
        )
    if suffix in (".json", ".jsonlines", ".ndjson"):
        raise DataError(
            f"{file.url!r} is a {suffix} file; expected .jsonl (one JSON object a line) or text. "
            "Write one object a line and name it .jsonl, or give the path of a text file."
        )
    return JSONL if suffix == ".jsonl" else TEXT


def unmarked(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the blocks of a text, without the byte order mark that some editors write first."""
    coming = iter(blocks)
    if head := head_of(coming).removeprefix(BOM_UTF8):
        yield head
    yield from coming


def head_of(blocks: Iterator[bytes]) -> bytes:
    """Return the first blocks, as many as a byte order mark may be in."""
    head = b""
    for block in blocks:
        head += block
        if len(head) >= len(BOM_UTF8):
            break
    return head


def refuse_text_of_conversations(file: DataFile, text_field: str) -> None:
    """Raise DataError for a file of text if the documents are conversations: its content may look like one."""
    if text_field in _OF_OBJECT:
        raise DataError(f"{file.url}: text; {_EXPECTED[text_field]}")


def field_of(source: Source) -> str:
    """Return the text field of a source's lines, or what stands for lines with messages."""
    if source.prompts:
        return PROMPTS if source.chat_template is None else CHAT_PROMPTS
    if source.chat_template is None:
        return source.text_field
    if source.labels:
        return LABELS
    return PREFERENCES if source.preferences else CONVERSATION


def is_held_out(document: Document, fraction: float) -> bool:
    """Return whether the document is held out: its own content decides, so no other document matters."""
    return fraction > 0 and is_place_held_out(place_in_split(document.parts()), fraction)


def is_place_held_out(place: int, fraction: float) -> bool:
    """Return whether a document of this place in the split is held out."""
    return place < fraction * 2**64


def place_in_split(parts: Iterable[bytes]) -> int:
    """Return a number of 64 bits that a document's content decides: it is held out if that is below the fraction."""
    digest = hashlib.blake2b(digest_size=8, salt=_SPLIT_SALT)
    for part in parts:
        digest.update(part)
    return int.from_bytes(digest.digest(), "big")


def _text_document(file: DataFile, text_field: str) -> Iterator[Document]:
    with closing(read_blocks(file)) as blocks:
        parts = unmarked(blocks)
        first, second = next(parts, None), next(parts, None)
    if first is None:
        return
    refuse_text_of_conversations(file, text_field)
    if second is None:
        yield _whole_document(file.url, 0, first)
    else:
        yield Document(where=file.url, row=0, parts=lambda: unmarked(read_blocks(file)))


def _whole_document(where: str, row: int, text: bytes) -> Document:
    return Document(where=where, row=row, parts=lambda: iter((text,)))


def _line_documents(blocks: Iterable[bytes], url: str, text_field: str, first_row: int) -> Iterator[Document]:
    for row, line in enumerate(_lines(blocks), start=first_row):
        if row == 0:
            line = line.removeprefix(BOM_UTF8)  # noqa: PLW2901  some editors write it first, and it is not JSON
        if line.strip():
            where = f"{url}, line {row + 1}"
            text = _text_of(line, text_field, where)
            if text:
                yield _whole_document(where, row, text)


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
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}), given {_shown(line)}; {expected}.") from error
    except ValueError as error:  # it is JSON, and Python reads integers up to a length
        most = sys.get_int_max_str_digits()
        raise DataError(
            f"{where}: an integer of more than {most:,} digits, given {_shown(line)}; {expected}, and numbers of fewer "
            "digits: write it as a string, or leave it out."
        ) from error
    if read := _OF_OBJECT.get(text_field):
        return read(value, where)
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
