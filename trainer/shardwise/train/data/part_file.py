"""One file of a token store: the tokens of one part of a corpus, behind a header that says how much it holds.

    header      HEADER_BYTES of JSON, padded with spaces: the counts below, and the sha256 of all that follows
    train       tokens, little-endian uint16 or uint32
    held-out    tokens of the documents that are not trained on
    ends        little-endian int64 [document] of train, then of held-out: the position in the part after each
                end-of-text. A document that goes on in the next part has no end in this one.

Each section begins at a multiple of 8 bytes. The same part gives the same bytes, whoever writes it.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from shardwise.job.rounding import padded
from shardwise.train.data.tokenise import HELD_OUT, TRAIN, Piece
from shardwise.train.data.tokenizer import TokenArray

FORMAT = "shardwise-tokens-1"
HEADER_BYTES = 512
ENDS_DTYPE = np.dtype("<i8")
STREAMS = (TRAIN, HELD_OUT)
_ALIGNMENT = 8
_IN_MEMORY_BYTES = 256 << 20  # of the tokens of a part; a compressed file is one part, however long it is
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PartCounts:
    """What a part holds. Tokens count end-of-text; `sha256` is of everything behind the header."""

    train_tokens: int
    train_documents: int
    held_out_tokens: int
    held_out_documents: int
    sha256: str

    def tokens(self, stream: str) -> int:
        """Return the number of tokens of a stream."""
        return self.train_tokens if stream == TRAIN else self.held_out_tokens

    def documents(self, stream: str) -> int:
        """Return the number of documents of a stream that end in this part."""
        return self.train_documents if stream == TRAIN else self.held_out_documents

    def tokens_offset(self, stream: str, itemsize: int) -> int:
        """Return where in the file the tokens of a stream begin; tokens have `itemsize` bytes."""
        return HEADER_BYTES + (0 if stream == TRAIN else _aligned(self.train_tokens * itemsize))

    def ends_offset(self, stream: str, itemsize: int) -> int:
        """Return where in the file the ends of a stream's documents begin."""
        after_tokens = self.tokens_offset(HELD_OUT, itemsize) + _aligned(self.held_out_tokens * itemsize)
        return after_tokens + (0 if stream == TRAIN else self.train_documents * ENDS_DTYPE.itemsize)

    def size_bytes(self, itemsize: int) -> int:
        """Return the size of the whole file."""
        return self.ends_offset(HELD_OUT, itemsize) + self.held_out_documents * ENDS_DTYPE.itemsize


def write_part(
    path: Path,
    batches: Iterable[list[tuple[Piece, TokenArray]]],
    *,
    dtype: np.dtype[np.unsignedinteger[Any]],
    end_of_text: int,
) -> PartCounts:
    """Write the pieces of a part into a new file, and return what it holds."""
    end = np.array([end_of_text], dtype)
    counts = dict.fromkeys(STREAMS, 0)
    ends: dict[str, list[NDArray[np.int64]]] = {stream: [] for stream in STREAMS}
    with ExitStack() as stack:
        spools = {stream: stack.enter_context(tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)) for stream in STREAMS}
        for batch in batches:
            for stream, spool in spools.items():
                own = [(tokens, piece.ends_document) for piece, tokens in batch if piece.stream == stream]
                if not own:
                    continue
                lengths = np.array([tokens.size + ends_document for tokens, ends_document in own], np.int64)
                ended = np.array([ends_document for _, ends_document in own], np.bool_)
                ends[stream].append((counts[stream] + np.cumsum(lengths))[ended])
                counts[stream] += int(lengths.sum())
                chunks = [chunk for tokens, ends_it in own for chunk in ((tokens, end) if ends_it else (tokens,))]
                spool.write(np.concatenate(chunks, dtype=dtype).data)
        sections: list[IO[bytes]] = [spools[TRAIN], spools[HELD_OUT]]
        all_ends = {stream: np.concatenate([np.empty(0, ENDS_DTYPE), *ends[stream]]) for stream in STREAMS}
        for stream in STREAMS:
            spool = stack.enter_context(tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES))
            spool.write(all_ends[stream].astype(ENDS_DTYPE).data)
            sections.append(spool)
        return _assemble(path, sections, counts, {stream: each.size for stream, each in all_ends.items()})


def read_header(content: bytes) -> PartCounts | None:
    """Return what the header of a part says; None if it is no header."""
    try:
        header = json.loads(content[:HEADER_BYTES])
    except ValueError:
        return None
    if not isinstance(header, dict) or header.pop("format", None) != FORMAT:
        return None
    return PartCounts(**header)


def _assemble(path: Path, sections: list[IO[bytes]], tokens: dict[str, int], documents: dict[str, int]) -> PartCounts:
    digest = hashlib.sha256()
    with path.open("wb") as handle:
        handle.write(bytes(HEADER_BYTES))
        for section in sections:
            section.seek(0)
            while block := section.read(_COPY_BYTES):
                digest.update(block)
                handle.write(block)
            padding = bytes(-handle.tell() % _ALIGNMENT)
            digest.update(padding)
            handle.write(padding)
        counts = PartCounts(
            train_tokens=tokens[TRAIN],
            train_documents=documents[TRAIN],
            held_out_tokens=tokens[HELD_OUT],
            held_out_documents=documents[HELD_OUT],
            sha256=digest.hexdigest(),
        )
        header = json.dumps({"format": FORMAT, **asdict(counts)}).encode()
        assert len(header) <= HEADER_BYTES
        handle.seek(0)
        handle.write(header.ljust(HEADER_BYTES))
    return counts


def _aligned(size_bytes: int) -> int:
    return padded(size_bytes, _ALIGNMENT)
