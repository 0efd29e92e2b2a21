"""Tokenizers: bytes, and Hugging Face's `tokenizer.json`.

They encode a corpus or a prompt, and decode an answer. They read no data file but the tokenizer's own.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise.job.presets import BYTE_TOKENIZER, BYTE_VOCAB_SIZE
from shardwise.job.spec.data import Data
from shardwise.protocol.errors import DataError
from shardwise.train.data.files import find_files, read_blocks
from shardwise.train.data.pieces import check_utf8, cut

_END_OF_TEXT_NAMES = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>")
_MAX_UINT16_VOCAB = 1 << 16

TokenArray = NDArray[np.unsignedinteger[Any]]


class Encoding(Protocol):
    """What the tokens of a corpus are made by, to be kept."""

    @property
    def end_of_text(self) -> int:
        """The id that follows each document."""

    @property
    def stored_dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The type in which its tokens are stored."""

    @property
    def fingerprint(self) -> str:
        """Differs when the same text may give other tokens."""

    def split(self, parts: Iterable[bytes], where: str) -> Iterator[bytes]:
        """Cut a document, given in parts, into pieces that are encoded on their own. `where` names it in errors."""

    def encode_batch(self, pieces: Sequence[bytes]) -> list[TokenArray]:
        """Return the tokens of each piece [token], of any unsigned type. The pieces come from `split`."""


class Tokenizer(Encoding, Protocol):
    """The interface of tokenizers. Token ids are below `vocab_size`."""

    @property
    def vocab_size(self) -> int:
        """One more than the greatest token id."""

    @property
    def text_vocab_size(self) -> int:
        """One more than the greatest id that a document has, with the tokens around it."""

    @property
    def end_token(self) -> str | None:
        """The name of the token that follows each document, if it has one."""

    @property
    def begin_of_text(self) -> int | None:
        """The id that each document begins with, if any."""

    def encode(self, text: str) -> TokenArray:
        """Return the tokens of a text, without end-of-text; `token_dtype(vocab_size)` [token]."""

    def marker(self, name: str) -> TokenArray:
        """Return the tokens that a marker of a template is, such as <|im_end|>; DataError if none will do."""

    def prompt(self, text: str) -> list[int]:
        """Return the tokens that a model is given to go on from: those of a document that begins so."""

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens; end-of-text gives nothing, invalid UTF-8 the replacement character."""


class Beginning(bytes):
    """The first piece of a document, where the tokenizer puts a token before it."""


def load_tokenizer(spec: str, *, begin: str | None = None, end: str | None = None) -> Tokenizer:
    """Return the tokenizer that the job names: "byte", or the path or URL of a tokenizer.json.

    `begin` and `end` are tokens of a tokenizer.json, before and after each document. Raises DataError.
    """
    if spec != BYTE_TOKENIZER:
        return HfTokenizer(spec, begin=begin, end=end)
    if begin or end:
        raise DataError(f"given the token {begin or end!r} with tokenizer: byte, which has none that can be named")
    return ByteTokenizer()


def tokenizer_of(data: Data) -> Tokenizer:
    """Return the tokenizer of a data section, with the tokens that it names. Raises DataError."""
    return load_tokenizer(data.tokenizer, begin=data.begin_token, end=data.end_token)


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the little-endian type in which tokens are stored."""
    return np.dtype("<u2" if vocab_size <= _MAX_UINT16_VOCAB else "<u4")


class ByteTokenizer:
    """Tokens 0-255 are the bytes, 256 is end-of-text. Any file can be encoded; UTF-8 is not asked for."""

    vocab_size = text_vocab_size = BYTE_VOCAB_SIZE
    begin_of_text = end_token = None
    end_of_text = BYTE_VOCAB_SIZE - 1
    stored_dtype = np.dtype("<u2")
    fingerprint = "byte-257"

    def split(self, parts: Iterable[bytes], where: str) -> Iterator[bytes]:  # noqa: ARG002
        """Return the parts as they are: bytes have no context."""
        return iter(parts)

    def encode_batch(self, pieces: Sequence[bytes]) -> list[TokenArray]:
        """Return one token a byte."""
        return [np.frombuffer(piece, np.uint8) for piece in pieces]

    def encode(self, text: str) -> TokenArray:
        """Return the UTF-8 bytes of the text."""
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype("<u2")

    def marker(self, name: str) -> TokenArray:
        """Return the bytes of its name: there are no other tokens."""
        return self.encode(name)

    def prompt(self, text: str) -> list[int]:
        """Return the tokens of the text; end-of-text, after which a document begins, if it is empty."""
        return self.encode(text).tolist() or [self.end_of_text]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the bytes read as UTF-8."""
        return bytes(token for token in tokens if token < self.end_of_text).decode("utf-8", errors="replace")


class HfTokenizer:
    """A tokenizer.json read by the `tokenizers` library.

    Special tokens written out in a text are encoded as the plain text that they are there, no token is added by the
    post-processor, and truncation and padding set in the file are switched off.

    A document of more than PIECE_BYTES is cut after the last newline of each PIECE_BYTES (without one, between two
    characters), so that it need not be held whole; a token that would have spanned the cut comes out as two.
    """

    def __init__(self, path: str, *, begin: str | None = None, end: str | None = None) -> None:
        """Read the file. Raise DataError if it is no tokenizer.json, or has no such tokens."""
        from tokenizers import Tokenizer as Library  # noqa: PLC0415  not needed where bytes are the tokens

        content = b"".join(block for file in find_files([path]) for block in read_blocks(file))
        try:
            self._library: Any = Library.from_str(content.decode("utf-8"))
        except Exception as error:  # the library raises plain Exception
            raise DataError(
                f"tokenizer {path!r} cannot be read: {error}. Expected 'byte' or the path of a tokenizer.json "
                "as the Hugging Face tokenizers library writes it."
            ) from error
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = True
        vocabulary: dict[str, int] = self._library.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self.end_token = _end_token(vocabulary, path) if end is None else end
        self.end_of_text = _token(vocabulary, path, self.end_token, "endToken")
        self.begin_of_text = None if begin is None else _token(vocabulary, path, begin, "beginToken")
        tokens = "".join(f"-{name}-{token}" for name, token in (("begin", begin), ("end", end)) if token is not None)
        self.fingerprint = f"tokenizer.json-{hashlib.sha256(content).hexdigest()}{tokens}"
        self._dtype = self.stored_dtype = token_dtype(self.vocab_size)
        self._path = path

    @property
    def text_vocab_size(self) -> int:
        """Leave out special tokens that were added, such as that of an image: no text is encoded to them."""
        plain = self._library.get_vocab(with_added_tokens=False).values()
        added = self._library.get_added_tokens_decoder().items()
        around = (self.end_of_text, self.begin_of_text or 0)
        greatest: int = max(*plain, *(token for token, content in added if not content.special), *around)
        return greatest + 1

    def split(self, parts: Iterable[bytes], where: str) -> Iterator[bytes]:
        """Yield pieces of valid UTF-8 of at most about PIECE_BYTES. Raise DataError at the first byte that is not."""
        offset = 0
        for piece in cut(parts):
            check_utf8(piece, offset, where)
            yield piece if offset or self.begin_of_text is None else Beginning(piece)
            offset += len(piece)

    def encode_batch(self, pieces: Sequence[bytes]) -> list[TokenArray]:
        """Encode the pieces in the library's threads."""
        texts = [piece.decode("utf-8") for piece in pieces]
        encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        begin = [] if self.begin_of_text is None else [self.begin_of_text]
        return [
            np.array([*begin, *encoding.ids] if isinstance(piece, Beginning) else encoding.ids, self._dtype)
            for piece, encoding in zip(pieces, encodings, strict=True)
        ]

    def encode(self, text: str) -> TokenArray:
        """Encode the text as a whole."""
        return np.array(self._library.encode(text, add_special_tokens=False).ids, self._dtype)

    def marker(self, name: str) -> TokenArray:
        """Return the token of this name. Raise DataError without one, and if a text that writes the name has it."""
        token = self._library.token_to_id(name)
        if token is None:
            raise DataError(
                f"tokenizer {self._path!r} has no token {name}, which chatTemplate writes; expected one among its "
                "added tokens. Add it to the file, or take the chatTemplate of this tokenizer."
            )
        if token in self.encode(name):
            raise DataError(
                f"tokenizer {self._path!r} reads {name} in a message as the marker that chatTemplate writes; expected "
                "a special token, which a text cannot have; set its special to true among the file's added_tokens"
            )
        return np.array([token], self._dtype)

    def prompt(self, text: str) -> list[int]:
        """Return the token that begins documents, if there is one, and those of the text; else end-of-text."""
        begin = [] if self.begin_of_text is None else [self.begin_of_text]
        return [*begin, *self.encode(text).tolist()] or [self.end_of_text]

    def decode(self, tokens: Iterable[int]) -> str:
        """Decode; special tokens give nothing."""
        return str(self._library.decode([int(token) for token in tokens], skip_special_tokens=True))


def _end_token(vocabulary: dict[str, int], path: str) -> str:
    for name in _END_OF_TEXT_NAMES:
        if name in vocabulary:
            return name
    raise DataError(
        f"tokenizer {path!r} has no end-of-text token; expected one of {', '.join(_END_OF_TEXT_NAMES)} "
        "in its vocabulary or its added tokens. Name the one that it has in data.endToken, or add one to the file."
    )


def _token(vocabulary: dict[str, int], path: str, token: str, field: str) -> int:
    if token not in vocabulary:
        near = get_close_matches(token, vocabulary, 3, 0.5)
        raise DataError(
            f"data.{field}: given {token!r}, which tokenizer {path!r} does not have"
            + (f"; near it are {', '.join(near)}" if near else "")
        )
    return vocabulary[token]
