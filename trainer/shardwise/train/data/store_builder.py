"""Make token stores out of a job's `data` section: every file is read once for its digest and once for its tokens.

The work is cut into tasks (`store_tasks`) that `run` may spread over processes and hosts. A build that was killed goes
on with what is there, and several at once are harmless: they make the same bytes.

    <to>/<name>-<key>/     a store (`token_store`) for each source; the key is of all that decides its bytes
    <to>/scans/<id>.json   digests and cuts of some files, known by their addresses and stamps; they only save time
"""

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from shardwise.job.spec.data import Data, Source
from shardwise.protocol.errors import DataError
from shardwise.train.data.chat import TokenizerName
from shardwise.train.data.digests import refuse_empty
from shardwise.train.data.files import DataFile, find_files
from shardwise.train.data.folder import Folder
from shardwise.train.data.part_file import PartCounts
from shardwise.train.data.scan import Scan, parts, spans
from shardwise.train.data.sources import field_of
from shardwise.train.data.store_tasks import PartTask, do_scan, make_part, parts_that_are_there, scan_tasks
from shardwise.train.data.token_store import INDEX, Index, is_store
from shardwise.train.data.tokenise import Corpus
from shardwise.train.data.tokenizer import BYTE, Tokenizer

PART_BYTES = 64 << 20
"""Of the corpus: what a kill loses of each process at most."""
_SCANS = "scans"
_KEY_DIGITS = 16

Task = TypeVar("Task")
Result = TypeVar("Result")
Progress = Callable[[str, int, int, int], None]
"""Gets what is being done, how many bytes of it were done before, are done now, and are to be done in all."""


class Run(Protocol):
    """Runs tasks anywhere, and yields what they return in any order. An error of a task is raised."""

    def __call__(self, act: Callable[[Task], Result], tasks: Sequence[Task], /) -> Iterator[Result]:
        """Return the results."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """A store that is whole. `num_made` of its parts were made now."""

    name: str
    url: str
    index: Index
    num_made: int


def build(data: Data, to: str, *, run: Run, progress: Progress, part_bytes: int = PART_BYTES) -> list[Built]:
    """Make a store below `to` for each source, unless it is there. Raise DataError for data that cannot be used."""
    for source in data.train:
        if any(is_store(path) for path in source.paths):
            raise DataError(
                f"source {source.name!r} names a token store; expected files of text. Its tokens are there already: "
                "take the source out."
            )
    # Tasks run in other folders and on other hosts, so the path is absolute.
    path = data.tokenizer if data.tokenizer == BYTE else find_files([data.tokenizer])[0].url
    name = TokenizerName(path, data.begin_token, data.end_token)
    builders = [
        _Builder(
            tokenizer=own.load(),
            name=own,
            held_out=data.held_out,
            to=Folder(to).absolute(),
            run=run,
            progress=progress,
            part_bytes=part_bytes,
        )
        for own in (name._replace(template=source.chat_template) for source in data.train)
    ]
    return [builder.build(source) for builder, source in zip(builders, data.train, strict=True)]


@dataclass(frozen=True, kw_only=True)
class _Builder:
    tokenizer: Tokenizer
    name: TokenizerName
    held_out: float
    to: Folder
    run: Run
    progress: Progress
    part_bytes: int

    def build(self, source: Source) -> Built:
        files = find_files(source.paths)
        scans = self._scans(source.name, files)
        plain = self._index(source, files, scans)
        digest = hashlib.sha256(plain.dumps()).hexdigest()
        folder = self.to.inside(f"{source.name}-{digest[:_KEY_DIGITS]}")
        tasks = [
            PartTask(
                number=number,
                spans=part,
                folder=folder.url,
                text_field=field_of(source),
                held_out=self.held_out,
                tokenizer=self.name,
                fingerprint=self.tokenizer.fingerprint,
            )
            for number, part in enumerate(parts(spans(files, scans), self.part_bytes))
        ]
        known = parts_that_are_there(folder, plain.itemsize)
        num_made = self._make(source.name, tasks, known)
        index = replace(plain, parts=tuple(known[task.number] for task in tasks))
        if folder.read(INDEX) != index.dumps():
            folder.write(INDEX, index.dumps())
        folder.remove_partial()
        return Built(name=source.name, url=folder.url, index=index, num_made=num_made)

    def _scans(self, name: str, files: Sequence[DataFile]) -> list[Scan]:
        tasks = scan_tasks(files, self.part_bytes, self.to.inside(_SCANS).url)
        found: dict[int, list[Scan]] = {}
        done_bytes, of_bytes = 0, sum(task.num_bytes for task in tasks)
        self.progress(f"reading {name}", 0, 0, of_bytes)
        for number, scans in self.run(do_scan, tasks):
            found[number] = scans
            done_bytes += tasks[number].num_bytes
            self.progress(f"reading {name}", 0, done_bytes, of_bytes)
        return [each for task in tasks for each in found[task.number]]

    def _index(self, source: Source, files: tuple[DataFile, ...], scans: Sequence[Scan]) -> Index:
        """Return the index but for its parts: all that decides the bytes of the store."""
        digests = tuple(each.digest for each in scans)
        refuse_empty(files, digests)
        corpus = Corpus(
            name=source.name, files=files, digests=digests, text_field=field_of(source), held_out=self.held_out
        )
        return Index(
            tokenizer=self.tokenizer.fingerprint,
            dtype=self.tokenizer.stored_dtype.str,
            part_bytes=self.part_bytes,
            corpus=corpus.identity(),
            parts=(),
        )

    def _make(self, name: str, tasks: Sequence[PartTask], known: dict[int, PartCounts]) -> int:
        """Make the parts that `known` lacks, put them there, and return how many were made here."""
        missing = [task for task in tasks if task.number not in known]
        # Builds at once begin at different places, and skip what the other has made.
        first = secrets.randbelow(len(missing)) if missing else 0
        of_bytes = sum(task.num_bytes for task in tasks)
        before_bytes = done_bytes = of_bytes - sum(task.num_bytes for task in missing)
        num_made = 0
        self.progress(f"tokenising {name}", before_bytes, before_bytes, of_bytes)
        for number, counts, was_made in self.run(make_part, [*missing[first:], *missing[:first]]):
            known[number] = counts
            num_made += was_made
            done_bytes += tasks[number].num_bytes
            self.progress(f"tokenising {name}", before_bytes, done_bytes, of_bytes)
        return num_made
