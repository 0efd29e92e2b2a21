"""Read the files of a corpus once before they are tokenised: their digests, and where they may be cut into parts.

A part is what one task tokenises: neighbouring files up to `part_bytes`, or a range of a larger one. A range begins
where the tokens do not depend on what is before it: at a line of JSONL, a row group of Parquet or a record batch of
Arrow, or where a tokenizer cuts a long text in any case. A compressed file is never cut. The cuts follow from the
content and `part_bytes` alone.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardwise.train.data.columns import cuts as column_cuts
from shardwise.train.data.digests import Digest
from shardwise.train.data.files import DataFile, has_changed, read_range, read_raw_blocks
from shardwise.train.data.pieces import cut
from shardwise.train.data.sources import (
    JSONL,
    TEXT,
    documents_within,
    file_kind,
    is_place_held_out,
    place_in_split,
    refuse_text_of_conversations,
    unmarked,
)
from shardwise.train.data.tokenise import HELD_OUT, TRAIN, Piece, document_pieces, file_pieces, one_by_one
from shardwise.train.data.tokenizer import Encoding


class Scan(NamedTuple):
    """What one file holds. `cuts` are [bytes before it, lines or rows before it]; `place` is a cut text's in the split.

    `num_rows` counts lines or rows up to the last document; it is 0 where nobody has asked for hashes.
    """

    digest: str
    cuts: list[list[int]]
    place: int
    num_rows: int = 0


@dataclass(frozen=True, kw_only=True)
class Span:
    """A range of a file, or the whole of it: bytes `start` up to `stop` of `file`, after `num_rows` lines or rows."""

    file: DataFile
    start: int
    stop: int
    num_rows: int
    place: int

    @property
    def is_whole(self) -> bool:
        """Return whether nothing of the file is left out."""
        return self.start == 0 and self.stop == self.file.size_bytes


def scan(file: DataFile, part_bytes: int, beat: Callable[[], None]) -> Scan:
    """Read a file; beat after each block. Raise DataError if it cannot be read."""
    digest, kind = Digest(file), file_kind(file)

    def look(block: bytes) -> None:
        digest.update(block)
        beat()

    if file.size_bytes <= part_bytes or file.suffixes[1]:
        for block in read_raw_blocks(file):
            look(block)
        return Scan(digest.hexdigest(), [], 0)
    if kind == JSONL:
        cuts = list(_line_cuts(_seen(file, look), part_bytes))
        return Scan(digest.hexdigest(), cuts, 0)
    if kind != TEXT:
        for block in read_raw_blocks(file):
            look(block)
        return Scan(digest.hexdigest(), column_cuts(file, kind, part_bytes), 0)
    cuts = []
    place = place_in_split(_noted(cut(unmarked(_seen(file, look))), part_bytes, cuts))
    cuts = [[offset + digest.mark_bytes(), num_lines] for offset, num_lines in cuts]
    return Scan(digest.hexdigest(), cuts, place)


def spans(files: Sequence[DataFile], scans: Sequence[Scan]) -> Iterator[Span]:
    """Yield the files of a corpus, cut, in order."""
    for file, found in zip(files, scans, strict=True):
        begins = [[0, 0], *(each for each in found.cuts if each[0] < file.size_bytes)]
        for number, (start, num_rows) in enumerate(begins):
            stop = begins[number + 1][0] if number + 1 < len(begins) else file.size_bytes
            yield Span(file=file, start=start, stop=stop, num_rows=num_rows, place=found.place)


def parts(found: Iterator[Span], part_bytes: int) -> list[tuple[Span, ...]]:
    """Put neighbouring spans together as long as they have at most `part_bytes`."""
    made: list[tuple[Span, ...]] = []
    pending: list[Span] = []
    size_bytes = 0
    for span in found:
        if pending and size_bytes + span.stop - span.start > part_bytes:
            made.append(tuple(pending))
            pending, size_bytes = [], 0
        pending.append(span)
        size_bytes += span.stop - span.start
    return [*made, tuple(pending)] if pending else made


def span_pieces(
    span: Span, text_field: str, held_out: float, tokenizer: Encoding, left_out: Collection[int] = ()
) -> Iterator[Piece]:
    """Yield the pieces of a span, as those of its whole file would be; `left_out` are rows of the file.

    Raise DataError for data that cannot be used.
    """
    if span.is_whole:
        return file_pieces(span.file, text_field, held_out, tokenizer, left_out)
    if file_kind(span.file) != TEXT:
        within = documents_within(span.file, text_field, start=span.start, stop=span.stop, first_row=span.num_rows)
        return document_pieces(within, held_out, tokenizer, left_out)
    refuse_text_of_conversations(span.file, text_field)
    if left_out:
        return iter(())
    stored = read_range(span.file, span.start, span.stop)
    blocks = stored if span.start else unmarked(stored)
    stream = HELD_OUT if is_place_held_out(span.place, held_out) else TRAIN
    return _text_pieces(span, tokenizer.split(blocks, f"{span.file.url}, behind byte {span.start}"), stream)


def changed(part: Sequence[Span]) -> DataFile | None:
    """Return a file that looks different from when it was found."""
    return next((span.file for span in part if has_changed(span.file)), None)


def _text_pieces(span: Span, pieces: Iterator[bytes], stream: str) -> Iterator[Piece]:
    content = next(pieces)
    if span.start:
        content = bytes(content)  # not the document's beginning, which has a token of its own
    yield from one_by_one(stream, content, pieces, ends_document=span.stop == span.file.size_bytes)


def _seen(file: DataFile, look: Callable[[bytes], None]) -> Iterator[bytes]:
    for block in read_raw_blocks(file):
        look(block)
        yield block


def _line_cuts(blocks: Iterator[bytes], part_bytes: int) -> Iterator[list[int]]:
    """Yield a cut behind the first end of a line that is at least `part_bytes` behind the cut before."""
    offset = num_lines = 0
    wanted = part_bytes
    for block in blocks:
        while (found := block.find(b"\n", max(0, wanted - 1 - offset))) >= 0:
            yield [offset + found + 1, num_lines + block.count(b"\n", 0, found + 1)]
            wanted = offset + found + 1 + part_bytes
        num_lines += block.count(b"\n")
        offset += len(block)


def _noted(pieces: Iterator[bytes], part_bytes: int, cuts: list[list[int]]) -> Iterator[bytes]:
    """Pass pieces on; append a cut before the first of them that is at least `part_bytes` behind the cut before."""
    offset = last = 0
    for piece in pieces:
        if offset - last >= part_bytes:
            cuts.append([offset, 0])
            last = offset
        offset += len(piece)
        yield piece
