"""Make token stores out of a job's `data` section: every file is read once for its digest and once for its tokens.

The work is cut into tasks (`store_tasks`, `dedup`) that `run` may spread over processes and hosts. A build that was
killed goes on with what is there, and several at once are harmless: they make the same bytes.

    <to>/<name>-<key>/       a store (`token_store`) for each source; the key is of all that decides its bytes
    <to>/scans/<id>.json     digests and cuts of some files, known by their addresses and stamps; they only save time
    <to>/scans/<id>.hashes   with dedup: the hashes of their documents, known by their contents
    <to>/dedup/<id>/         with dedup: which documents of all sources are left out
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Protocol, TypeVar

from shardwise.job.presets import BYTE_TOKENIZER
from shardwise.job.spec.data import Data, Source
from shardwise.protocol.errors import DataError
from shardwise.train.data.dedup import Hashes, Removed, dedup_tasks, do_dedup
from shardwise.train.data.digests import refuse_empty
from shardwise.train.data.encodings import EncodingName
from shardwise.train.data.files import find_files
from shardwise.train.data.folder import Folder
from shardwise.train.data.part_file import PartCounts
from shardwise.train.data.scan import Scan, parts, spans
from shardwise.train.data.sources import field_of
from shardwise.train.data.store_tasks import (
    PartTask,
    do_scan,
    hashes_of,
    make_part,
    no_beat,
    parts_that_are_there,
    scan_tasks,
)
from shardwise.train.data.token_store import INDEX, Index, is_store
from shardwise.train.data.tokenise import Corpus

PART_BYTES = 64 << 20
"""Of the corpus: what a kill loses of each process at most."""
_SCANS, _DEDUP = "scans", "dedup"
_KEY_DIGITS = 16

Result = TypeVar("Result", bound=tuple[Any, ...])
Progress = Callable[[str, int, int, int], None]
"""Gets what is being done, how many bytes of it were done before, are done now, and are to be done in all."""


class Run(Protocol):
    """Runs tasks anywhere, and yields what they return in any order: first the task's `number`.

    An error of a task is raised.
    """

    def __call__(self, act: Callable[[Any], Result], tasks: Sequence[Any], /) -> Iterator[Result]:
        """Return the results."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """A store that is whole. `num_made` of its parts were made now."""

    name: str
    url: str
    index: Index
    num_made: int


def build(
    data: Data,
    to: str,
    *,
    run: Run,
    progress: Progress,
    part_bytes: int = PART_BYTES,
    beat: Callable[[], None] = no_beat,
) -> list[Built]:
    """Make a store below `to` for each source, unless it is there; tasks call `beat` as they get on.

    Raise DataError for data that cannot be used.
    """
    for source in data.train:
        if any(is_store(path) for path in source.paths):
            raise DataError(
                f"source {source.name!r} names a token store; expected files of text. Its tokens are there already: "
                "take the source out."
            )
    # Tasks run in other folders and on other hosts, so the path is absolute.
    path = data.tokenizer if data.tokenizer == BYTE_TOKENIZER else find_files([data.tokenizer])[0].url
    name = EncodingName(path, data.begin_token, data.end_token)
    builder = _Builder(
        name=name, data=data, to=Folder(to).absolute(), run=run, progress=progress, part_bytes=part_bytes, beat=beat
    )
    read: list[_Read] = []
    for source in data.train:
        read.append(builder.read(source, read))
    removed = builder.removed(read) if data.dedup else None
    return [builder.build(each, removed) for each in read]


@dataclass(frozen=True, kw_only=True)
class _Read:
    """A source whose files were read. Its rows are numbered from `first_row` on; `hashes` are of its documents."""

    source: Source
    corpus: Corpus
    scans: tuple[Scan, ...]
    hashes: tuple[Hashes, ...]
    first_row: int

    @property
    def file_rows(self) -> list[int]:
        """Return the first row of each file, and the one behind the last."""
        return list(accumulate((each.num_rows for each in self.scans), initial=self.first_row))


@dataclass(frozen=True, kw_only=True)
class _Builder:
    name: EncodingName
    data: Data
    to: Folder
    run: Run
    progress: Progress
    part_bytes: int
    beat: Callable[[], None]

    def read(self, source: Source, before: Sequence[_Read]) -> _Read:
        """Read the files of a source; `before` are the sources whose documents it must not repeat."""
        files = find_files(source.paths)
        field = field_of(source) if self.data.dedup else None
        tasks = scan_tasks(files, self.part_bytes, self.to.inside(_SCANS).url, field)
        found = dict(self._all(f"reading {source.name}", do_scan, tasks, 0))
        scans = tuple(each for task in tasks for each in found[task.number])
        digests = tuple(each.digest for each in scans)
        refuse_empty(files, digests)
        others = json.dumps([each.corpus.identity() for each in before], sort_keys=True)
        corpus = Corpus(
            name=source.name,
            files=files,
            digests=digests,
            text_field=field_of(source),
            held_out=self.data.held_out,
            dedup=hashlib.sha256(others.encode()).hexdigest() if self.data.dedup else None,
        )
        hashes = tuple(hashes_of(task, found[task.number]) for task in tasks) if self.data.dedup else ()
        first_row = before[-1].file_rows[-1] if before else 0
        return _Read(source=source, corpus=corpus, scans=scans, hashes=hashes, first_row=first_row)

    def removed(self, read: Sequence[_Read]) -> Removed:
        """Find the documents of all sources that an earlier one equals."""
        hashes = [each for of_source in read for each in of_source.hashes]
        key = hashlib.sha256(json.dumps(hashes).encode()).hexdigest()[:32]
        folder = self.to.inside(f"{_DEDUP}/{key}").url
        tasks = dedup_tasks(hashes, self.to.inside(_SCANS).url, folder)
        list(self._all("looking for repeated documents", do_dedup, tasks, 0))
        return Removed(folder, len(tasks))

    def build(self, read: _Read, removed: Removed | None) -> Built:
        """Make the store of a source."""
        name = self.name.of(read.source)
        tokenizer = name.load()
        plain = Index(
            tokenizer=tokenizer.fingerprint,
            dtype=tokenizer.stored_dtype.str,
            part_bytes=self.part_bytes,
            corpus=read.corpus.identity(),
            parts=(),
        )
        digest = hashlib.sha256(plain.dumps()).hexdigest()
        folder = self.to.inside(f"{read.source.name}-{digest[:_KEY_DIGITS]}")
        tasks = self._part_tasks(read, folder, removed, name, tokenizer.fingerprint)
        there = folder.read(INDEX)
        # A host for which all is there goes on to `_make` too, where the others would wait for it.
        known = parts_that_are_there(folder, plain.itemsize, _parts_in(there, plain, folder.url))
        num_made = self._make(read.source.name, tasks, known)
        rows = read.file_rows
        index = replace(
            plain,
            parts=tuple(known[task.number] for task in tasks),
            num_removed=None if removed is None else removed.number_within(rows[0], rows[-1]),
        )
        if there != index.dumps() and folder.read(INDEX) != index.dumps():
            folder.write(INDEX, index.dumps())
        folder.remove_partial()
        return Built(name=read.source.name, url=folder.url, index=index, num_made=num_made)

    def _part_tasks(
        self, read: _Read, folder: Folder, removed: Removed | None, name: EncodingName, fingerprint: str
    ) -> list[PartTask]:
        files = read.corpus.files
        rows = dict(
            zip((file.url for file in files), zip(read.file_rows, read.file_rows[1:], strict=False), strict=True)
        )
        return [
            PartTask(
                number=number,
                spans=part,
                file_rows=tuple(rows[span.file.url] for span in part),
                removed=removed,
                folder=folder.url,
                text_field=field_of(read.source),
                held_out=self.data.held_out,
                tokenizer=name,
                fingerprint=fingerprint,
            )
            for number, part in enumerate(parts(spans(files, read.scans), self.part_bytes))
        ]

    def _make(self, name: str, tasks: Sequence[PartTask], known: dict[int, PartCounts]) -> int:
        """Make the parts that `known` lacks, put them there, and return how many were made here."""
        missing = [task for task in tasks if task.number not in known]
        before_bytes = sum(task.num_bytes for task in tasks) - sum(task.num_bytes for task in missing)
        # Builds at once begin at different places, and skip what the other has made.
        first = secrets.randbelow(len(missing)) if missing else 0
        missing = [*missing[first:], *missing[:first]]
        num_made = 0
        for number, counts, was_made in self._all(f"tokenising {name}", make_part, missing, before_bytes):
            known[number] = counts
            num_made += was_made
        return num_made

    def _all(self, doing: str, act: Callable[..., Result], tasks: Sequence[Any], before_bytes: int) -> Iterator[Result]:
        """Run tasks, and tell how far they are; `before_bytes` were done by an earlier build."""
        sizes = {task.number: task.num_bytes for task in tasks}
        of_bytes, done_bytes = before_bytes + sum(sizes.values()), before_bytes
        self.progress(doing, before_bytes, done_bytes, of_bytes)
        for result in self.run(partial(act, beat=self.beat), tasks):
            done_bytes += sizes[result[0]]
            self.progress(doing, before_bytes, done_bytes, of_bytes)
            yield result


def _parts_in(content: bytes | None, plain: Index, url: str) -> tuple[PartCounts, ...]:
    """Return the parts of an index that is `plain` but for them; none of one that is damaged, and is written anew."""
    try:
        there = Index.loads(content or b"", url)
    except (DataError, KeyError, TypeError):
        return ()
    return there.parts if replace(there, parts=(), num_removed=None).dumps() == plain.dumps() else ()
