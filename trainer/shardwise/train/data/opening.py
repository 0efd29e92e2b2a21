"""Open the sources of a job: token stores, texts that become stores, and texts in the cache of this host.

It knows no batches. With `data.store` the hosts of the run make the stores together; with `data.dedup` and no such
folder each host makes its own, because what is left out of one source depends on the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shardwise.job.spec.data import Data, Source
from shardwise.protocol.errors import DataError
from shardwise.train.data.cache import CachedCorpus, open_or_build
from shardwise.train.data.digests import file_digests
from shardwise.train.data.encodings import encoding_of
from shardwise.train.data.files import find_files
from shardwise.train.data.locks import locked
from shardwise.train.data.sequences import Stream
from shardwise.train.data.shared import Hosts, SharedProgress, SharedRun
from shardwise.train.data.sources import field_of
from shardwise.train.data.store_builder import Built, build
from shardwise.train.data.store_tasks import no_beat
from shardwise.train.data.token_store import TokenStore, open_store
from shardwise.train.data.tokenise import Corpus
from shardwise.train.data.tokenizer import Encoding, Tokenizer

_DIGESTS_FILE = "digests.json"
_OWN_STORES = "stores"


@dataclass(frozen=True, kw_only=True)
class SourceSummary:
    """What one source holds. Documents and tokens are of its training part."""

    name: str
    num_files: int
    num_documents: int
    num_tokens: int
    num_held_out_documents: int
    num_held_out_tokens: int
    num_repeated_documents: int | None
    """Documents that were left out because an earlier one equals them; None without dedup."""


class Opened(NamedTuple):
    """A source, ready to be read. `identity` is `Corpus.identity()`, whoever tokenised it, and the chat template."""

    identity: dict[str, Any]
    summary: SourceSummary
    train: Stream
    held_out: Stream


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Who else works on the data, and who is told how far it is.

    `hosts` are the processes of the run, each of which opens its data; None if this is the only one. `report` gets
    lines for the user, `say` how far it is right now; `beat` is called from any thread as reading and tokenising get
    on.
    """

    hosts: Hosts | None = None
    report: Callable[[str], None] = lambda _: None
    say: Callable[[str], None] = lambda _: None
    beat: Callable[[], None] = no_beat


def open_sources(data: Data, tokenizer: Tokenizer, folder: Path, watch: Watch, *, of_any_split: bool) -> list[Opened]:
    """Return the sources of a job, opened; `folder` is the cache of this host.

    Unless `of_any_split`, a store must hold out and leave out what the job does.

    Raise DataError for data that cannot be used, OSError for a disk that cannot be written.
    """
    stores = [open_store(source.paths, folder) for source in data.train]
    texts = [source for source, store in zip(data.train, stores, strict=True) if store is None]
    if data.dedup and 0 < len(texts) < len(stores):
        raise DataError(
            f"data.dedup: exact, and {texts[0].name!r} is text where another source is a token store; expected all "
            "sources as text, or all as stores that one `shardwise tokenize` has made of them."
        )
    if texts and (data.store or data.dedup):
        made = _built(data.model_copy(update={"train": tuple(texts)}), folder, watch)
        by_name = {each.name: open_store([each.url], folder) for each in made}
        stores = [store or by_name[source.name] for source, store in zip(data.train, stores, strict=True)]
    for store in stores:
        if store is not None and not of_any_split:
            store.refuse_other_split(data.held_out, data.dedup)
    return [
        _cached(source, data.held_out, encoding_of(tokenizer, source), folder, watch)
        if store is None
        else _stored(source, encoding_of(tokenizer, source), store, watch)
        for source, store in zip(data.train, stores, strict=True)
    ]


def _stored(source: Source, tokenizer: Encoding, store: TokenStore, watch: Watch) -> Opened:
    store.refuse_other(tokenizer, field_of(source))
    repeated = store.index.num_removed
    without = "" if repeated is None else f", without {repeated:,} repeated documents"
    watch.report(f"{source.name}: {store.train.num_tokens:,} tokens of the store {store.url}{without}")
    return _of(source, store.index.corpus, store, repeated)


def _cached(source: Source, held_out: float, tokenizer: Encoding, folder: Path, watch: Watch) -> Opened:
    corpus, cached = cached_corpus(source, field_of(source), held_out, tokenizer, folder, watch)
    return _of(source, corpus.identity(), cached, None)


def cached_corpus(
    source: Source, text_field: str, held_out: float, tokenizer: Encoding, folder: Path, watch: Watch
) -> tuple[Corpus, CachedCorpus]:
    """Return the files of a source, and their tokens from the cache in this folder, after making those it lacks."""
    files = find_files(source.paths)
    digests = file_digests(files, memo_path=folder / _DIGESTS_FILE, report=watch.report, beat=watch.beat)
    corpus = Corpus(name=source.name, files=files, digests=digests, text_field=text_field, held_out=held_out)
    return corpus, open_or_build(corpus, tokenizer, directory=folder, report=watch.report, beat=watch.beat)


def _built(data: Data, folder: Path, watch: Watch) -> list[Built]:
    if data.store and watch.hosts:
        run, progress = SharedRun(watch.hosts), SharedProgress(watch.hosts, watch.say, watch.report)
        return build(data, data.store, run=run, progress=progress, beat=watch.beat)

    def progress_here(doing: str, _: int, done_bytes: int, of_bytes: int) -> None:
        watch.say(f"{doing}: {done_bytes:,} of {of_bytes:,} bytes")

    if data.store:
        return build(data, data.store, run=map, progress=progress_here, beat=watch.beat)
    own = folder / _OWN_STORES
    own.mkdir(parents=True, exist_ok=True)
    # Simulated hosts of one machine share the folder: one of them works, and the others wait.
    waiting = "waiting for another process to tokenise the sources"
    with locked(folder / f"{_OWN_STORES}.lock", lambda: watch.report(waiting), _follower(own, watch.beat)):
        return build(data, str(own), run=map, progress=progress_here, beat=watch.beat)


def _follower(folder: Path, beat: Callable[[], None]) -> Callable[[], None]:
    """Return a look at what another process makes, which beats as files come."""
    seen: list[Path] = []

    def look() -> None:
        nonlocal seen
        found = list(folder.rglob("*"))
        if len(found) != len(seen):
            seen = found
            beat()

    return look


def _of(source: Source, identity: dict[str, Any], streams: CachedCorpus | TokenStore, repeated: int | None) -> Opened:
    summary = SourceSummary(
        name=source.name,
        num_files=len(identity["files"]),
        num_documents=streams.train.num_documents,
        num_tokens=streams.train.num_tokens,
        num_held_out_documents=streams.held_out.num_documents,
        num_held_out_tokens=streams.held_out.num_tokens,
        num_repeated_documents=repeated,
    )
    if source.chat_template is not None:
        identity = {**identity, "chat_template": source.chat_template}
    return Opened(identity, summary, streams.train, streams.held_out)
