"""The tokens of one corpus that many jobs share, as `shardwise tokenize` makes them (`store_builder`).

    <folder>/part-000000.tokens, ...   what `part_file` says, in the order of the corpus
    <folder>/index.json                written last: what the store is of, and what each part holds

A store may lie on a file system or in a bucket. Whoever reads it needs the index and the rows that it asks for, and
neither the text nor a digest of it.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.job.spec.data import Source
from shardwise.protocol.errors import DataError
from shardwise.train.data.blocks import BlockCache, MappedReader, Range, RangedReader, Reader
from shardwise.train.data.chat import TEMPLATES
from shardwise.train.data.folder import Folder
from shardwise.train.data.part_file import ENDS_DTYPE, FORMAT, STREAMS, PartCounts
from shardwise.train.data.sources import JUDGED
from shardwise.train.data.tokenizer import Encoding

INDEX = "index.json"
PART_SUFFIX = ".tokens"
_PART_NAME = re.compile(r"part-\d{6,}" + re.escape(PART_SUFFIX))


@dataclass(frozen=True, kw_only=True)
class Index:
    """What a store is of, and what each of its parts holds. `corpus` is `Corpus.identity()`.

    `num_removed` documents were left out because an earlier one equals them; None if none was looked for.
    """

    tokenizer: str
    dtype: str
    part_bytes: int
    corpus: dict[str, Any]
    parts: tuple[PartCounts, ...]
    num_removed: int | None = None

    @property
    def itemsize(self) -> int:
        """Return the bytes of a token."""
        return np.dtype(self.dtype).itemsize

    def dumps(self) -> bytes:
        """Return the file: the same bytes for equal indexes."""
        known = {name: value for name, value in asdict(self).items() if name != "num_removed" or value is not None}
        return (json.dumps({"format": FORMAT, **known}, indent=None, sort_keys=True) + "\n").encode()

    @staticmethod
    def loads(content: bytes, url: str) -> "Index":
        """Read the file. Raise DataError if it is none, or of another format."""
        try:
            data = json.loads(content)
        except ValueError:
            data = None
        given = data.pop("format", None) if isinstance(data, dict) else None
        if given != FORMAT:
            raise DataError(
                f"{url}/{INDEX} is no index of a token store: given the format {given!r}, expected {FORMAT!r}. Give "
                "the folder that `shardwise tokenize` of this release has named, or the files of text themselves."
            )
        return Index(**{**data, "parts": tuple(PartCounts(**part) for part in data["parts"])})


class StoredStream:
    """One stream of a store: what `store.TokenStream` is of the job's own cache."""

    def __init__(self, index: Index, stream: str, reader: Reader) -> None:
        self._index, self._stream, self._reader = index, stream, reader
        self._dtype = np.dtype(index.dtype)
        self._starts: NDArray[np.int64] = np.zeros(len(index.parts) + 1, np.int64)
        np.cumsum([part.tokens(stream) for part in index.parts], out=self._starts[1:])
        self.num_tokens = int(self._starts[-1])
        self.num_documents = sum(part.documents(stream) for part in index.parts)

    def read(self, start: int, stop: int) -> NDArray[np.int32]:
        """Return the tokens [token] from position `start` up to `stop`; 0 <= start <= stop <= num_tokens."""
        assert 0 <= start <= stop <= self.num_tokens
        found = [np.frombuffer(self._reader.read(each), self._dtype) for each in self._ranges(start, stop)]
        return np.concatenate([np.empty(0, np.int32), *found], dtype=np.int32, casting="unsafe")

    def ends_within(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the ends of documents [document] from position `first` up to `stop`."""
        found = []
        part = max(0, int(np.searchsorted(self._starts, first)) - 1)
        while part < len(self._index.parts) and self._starts[part] < stop:
            base = int(self._starts[part])
            ends = _Ends(self._index.parts[part], part, self._stream, self._index.itemsize, self._reader)
            found.append(base + ends.read(bisect_left(ends, first - base), bisect_left(ends, stop - base)))
            part += 1
        return np.concatenate([np.empty(0, np.int64), *found])

    def prefetch(self, wanted: Iterable[tuple[int, int]]) -> None:
        """Get the tokens of ranges that are soon read."""
        self._reader.prefetch(each for start, stop in wanted for each in self._ranges(start, stop))

    def _ranges(self, start: int, stop: int) -> list[Range]:
        found = []
        part = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            base, end = int(self._starts[part]), min(stop, int(self._starts[part + 1]))
            if start < end:
                offset = self._index.parts[part].tokens_offset(self._stream, self._dtype.itemsize)
                size = self._dtype.itemsize
                found.append(Range(part, offset + (start - base) * size, offset + (end - base) * size))
                start = end
            part += 1
        return found


class _Ends(Sequence[int]):
    """The ends of a part's documents, of which a search reads a few."""

    def __init__(self, counts: PartCounts, part: int, stream: str, itemsize: int, reader: Reader) -> None:
        self._count, self._offset = counts.documents(stream), counts.ends_offset(stream, itemsize)
        self._part, self._reader = part, reader

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return int(self.read(index, index + 1)[0])

    def read(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the ends [document] with these numbers."""
        size = ENDS_DTYPE.itemsize
        content = self._reader.read(Range(self._part, self._offset + first * size, self._offset + stop * size))
        return np.frombuffer(content, ENDS_DTYPE)


class TokenStore:
    """A store that is whole, opened."""

    def __init__(self, folder: Folder, index: Index, cache_folder: Path) -> None:
        """`cache_folder` is a local folder for what is read of a bucket."""
        sizes_bytes = np.array([part.size_bytes(index.itemsize) for part in index.parts], np.int64)
        reader: Reader
        if folder.local is None:
            reader = RangedReader(folder, part_name, sizes_bytes, BlockCache(cache_folder))
        else:
            reader = MappedReader(folder.local, part_name, sizes_bytes)
        self.url, self.index = folder.url, index
        self.train, self.held_out = (StoredStream(index, stream, reader) for stream in STREAMS)

    def refuse_other(self, tokenizer: Encoding, text_field: str) -> None:
        """Raise DataError if a source with this tokenizer, template and kind of lines cannot be read from it."""
        if self.index.tokenizer != tokenizer.fingerprint:
            (has, its), (wanted, given) = map(_apart, (self.index.tokenizer, tokenizer.fingerprint))
            if has == wanted:
                raise DataError(
                    f"the token store {self.url!r} was made with chatTemplate {its or 'left out'}; given "
                    f"{given or 'none'}. Make chatTemplate beside its path the store's, or tokenize again with this "
                    "one."
                )
            raise DataError(
                f"the token store {self.url!r} was made with the tokenizer {self.index.tokenizer}; given "
                f"{tokenizer.fingerprint}. Name that tokenizer in data.tokenizer, or tokenize again with this one."
            )
        (holds, field_held), (wants, asked) = (
            JUDGED.get(kind, ("conversations", "")) for kind in (self.index.corpus["text_field"], text_field)
        )
        if holds != wants:  # conversations and text have tokenizers of their own
            change = f"Set {field_held}: true in" if field_held else f"Take {asked} out of"
            raise DataError(
                f"the token store {self.url!r} holds {holds}; given a source of {wants}. {change} the source, "
                "or give it a store of the other kind."
            )
        is_judged = bool(field_held)
        field = self.index.corpus["text_field"]  # None of files of text, which have no fields
        if not is_judged and field is not None and text_field not in (field, Source.model_fields["text_field"].default):
            raise DataError(
                f"the token store {self.url!r} holds the text of textField {field}; given {text_field}. Take textField "
                "out beside its path, or tokenize again with this one."
            )

    def refuse_other_split(self, held_out: float, dedup: str | None) -> None:
        """Raise DataError if a job with this held-out share and dedup cannot train on it."""
        if self.index.corpus["held_out"] != held_out:
            raise DataError(
                f"the token store {self.url!r} holds out {self.index.corpus['held_out']:g} of its documents; given "
                f"heldOut {held_out:g}. Set data.heldOut to the store's, or tokenize again with this one."
            )
        if ("dedup" in self.index.corpus) != (dedup is not None):
            has, given = ("no ", "exact") if dedup else ("", "nothing")
            raise DataError(
                f"the token store {self.url!r} was made with {has}dedup: exact; given {given}. Set data.dedup to the "
                "store's, or tokenize again with this one."
            )


def _apart(fingerprint: str) -> tuple[str, str | None]:
    """Return the tokenizer that a source's rests on, and its template, None without one."""
    for template in TEMPLATES:
        if fingerprint.endswith(f"-{template}"):
            return fingerprint.removesuffix(f"-{template}"), template
    return fingerprint, None


def part_name(number: int) -> str:
    """Return the name of a part's file."""
    return f"part-{number:06d}{PART_SUFFIX}"


def open_store(paths: Sequence[str], cache_folder: Path) -> TokenStore | None:
    """Return the token store that the paths of a source name, or None if they name files.

    Raise DataError for a store that is not whole.
    """
    stores = [folder for path in paths if (folder := _store_at(path))]
    if not stores:
        return None
    if len(paths) > 1:
        raise DataError(
            f"the token store {stores[0].url!r} stands among {len(paths)} paths; expected it alone in the paths of "
            "its source. Give each store a source of its own; weights share the mixture."
        )
    content = stores[0].read(INDEX)
    if content is None:
        raise DataError(
            f"the token store {stores[0].url!r} is not finished: {INDEX} is missing. Give the same `shardwise "
            "tokenize` again: it goes on with what is there."
        )
    return TokenStore(stores[0], Index.loads(content, stores[0].url), cache_folder)


def is_store(path: str) -> bool:
    """Return whether a path of a source is a token store, be it whole or not."""
    return _store_at(path) is not None


def _store_at(path: str) -> Folder | None:
    # On a web server a look for a folder reads what is there, and what a `?` begins is a query.
    if Path(path).is_file() or (path.startswith(("http://", "https://")) and set(path) & set("*?[")):
        return None
    folder = Folder(path)
    if not folder.exists():  # a glob too is the name of a folder, if there is one
        return None
    names = folder.sizes()
    return folder if INDEX in names or any(map(_PART_NAME.fullmatch, names)) else None
