"""Turn the documents of one corpus into two streams of tokens: training and held-out.

A document is never held whole unless it is a line or a row; at most _BATCH_BYTES of text and their tokens are.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shardwise.train.data.files import DataFile
from shardwise.train.data.sources import TEXT, Document, documents, file_kind, is_held_out
from shardwise.train.data.token_stream import StreamLayout, StreamWriter
from shardwise.train.data.tokenizer import Encoding, TokenArray

TRAIN, HELD_OUT = "train", "held-out"
TOKENS_PER_FILE = 64 << 20
_BATCH_BYTES = 8 << 20
_REPORT_TOKENS = 1 << 28


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The files of one source and all that decides which tokens they give. `digests` are of `files`, in order.

    `dedup` is None, or a digest of the sources before this one, whose documents are left out here.
    """

    name: str
    files: tuple[DataFile, ...]
    digests: tuple[str, ...]
    text_field: str
    held_out: float
    dedup: str | None = None

    def identity(self) -> dict[str, object]:
        """Return what the content is, wherever it lies: as JSON values, in a fixed order."""
        contents = zip(self.files, self.digests, strict=True)
        kinds = [[digest, file_kind(file), file.suffixes[1]] for file, digest in contents]
        has_fields = any(kind != TEXT for _, kind, _ in kinds)
        found: dict[str, object] = {
            "files": kinds,
            "text_field": self.text_field if has_fields else None,
            "held_out": self.held_out,
        }
        return found if self.dedup is None else {**found, "dedup": self.dedup}


class Piece(NamedTuple):  # a dataclass takes five times as long to make, and documents may be short
    """What is encoded at once: a document, or a part of one. `stream` is TRAIN or HELD_OUT."""

    stream: str
    content: bytes
    ends_document: bool


def write_streams(
    corpus: Corpus, tokenizer: Encoding, directory: Path, report: Callable[[str], None], beat: Callable[[], None]
) -> list[StreamLayout]:
    """Write the streams TRAIN and HELD_OUT into `directory` and bring them to the disk; beat after each batch.

    Raise DataError for data that cannot be used, OSError for a disk that cannot be written.
    """
    writers = {
        name: StreamWriter(
            directory,
            name,
            dtype=tokenizer.stored_dtype,
            tokens_per_file=TOKENS_PER_FILE,
            end_of_text=tokenizer.end_of_text,
        )
        for name in (TRAIN, HELD_OUT)
    }
    next_report = _REPORT_TOKENS
    pieces = (
        piece for file in corpus.files for piece in file_pieces(file, corpus.text_field, corpus.held_out, tokenizer)
    )
    try:
        for batch in encoded(pieces, tokenizer):
            for name, writer in writers.items():
                writer.append([(tokens, piece.ends_document) for piece, tokens in batch if piece.stream == name])
            beat()
            if writers[TRAIN].num_tokens >= next_report:
                report(f"tokenising {corpus.name}: {writers[TRAIN].num_tokens:,} tokens so far")
                next_report += _REPORT_TOKENS
        return [writer.finish() for writer in writers.values()]
    except BaseException:
        for writer in writers.values():
            writer.abandon()
        raise


def file_pieces(
    file: DataFile, text_field: str, held_out: float, tokenizer: Encoding, left_out: Collection[int] = ()
) -> Iterator[Piece]:
    """Yield the pieces of a whole file's documents, without the rows `left_out`.

    Raise DataError for data that cannot be used.
    """
    return document_pieces(documents(file, text_field), held_out, tokenizer, left_out)


def document_pieces(
    found: Iterable[Document], held_out: float, tokenizer: Encoding, left_out: Collection[int] = ()
) -> Iterator[Piece]:
    """Yield the pieces of documents, each in the stream that its content decides, without the rows `left_out`."""
    for document in found:
        if document.row in left_out:
            continue
        stream = HELD_OUT if is_held_out(document, held_out) else TRAIN
        pieces = tokenizer.split(document.parts(), document.where)
        yield from one_by_one(stream, next(pieces, b""), pieces, ends_document=True)


def one_by_one(stream: str, content: bytes, further: Iterator[bytes], *, ends_document: bool) -> Iterator[Piece]:
    """Yield the pieces of a document from `content` on; the last one may end it."""
    for following in further:
        yield Piece(stream=stream, content=content, ends_document=False)
        content = following
    yield Piece(stream=stream, content=content, ends_document=ends_document)


def encoded(pieces: Iterable[Piece], tokenizer: Encoding) -> Iterator[list[tuple[Piece, TokenArray]]]:
    """Yield pieces with their tokens [token], in batches of _BATCH_BYTES so that a tokenizer may use its threads."""
    for batch in _batches(pieces):
        yield list(zip(batch, tokenizer.encode_batch([piece.content for piece in batch]), strict=True))


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size_bytes = 0
    for piece in pieces:
        batch.append(piece)
        size_bytes += len(piece.content)
        if size_bytes >= _BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    yield batch
