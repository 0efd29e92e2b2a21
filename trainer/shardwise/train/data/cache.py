"""The tokenised cache: each corpus is tokenised once, by one process, and mapped by all that come after.

It does not find files, take digests of them, or order sequences.

    <root>/data/<key>/            train-*.bin, train.ends, held-out-*.bin, held-out.ends, index.json, COMPLETE
    <root>/data/<key>.building/   the same while it is being written; renamed when whole, never read
    <root>/data/<key>.lock        held (flock) by the one process that builds; never deleted

The marker COMPLETE is written last and holds the digest of index.json, which holds the size of every other file: a
cache that was cut short in any way is seen before it is read, and rebuilt. The key is made of everything that decides
the tokens; file names are not part of it, so a corpus that moves keeps its cache.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from shardwise.protocol.files import replace_file, sync_directory
from shardwise.protocol.text import size
from shardwise.train.data.files import changed_meanwhile, has_changed
from shardwise.train.data.locks import locked, try_locked
from shardwise.train.data.token_stream import StreamLayout, TokenStream
from shardwise.train.data.tokenise import HELD_OUT, TRAIN, Corpus, write_streams
from shardwise.train.data.tokenizer import Encoding

FORMAT_VERSION = 1
_INDEX, _MARKER = "index.json", "COMPLETE"
_BUILDING = ".building"
_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class CachedCorpus:
    """The two streams of a corpus. Documents lie in the order of the files, each followed by end-of-text."""

    train: TokenStream
    held_out: TokenStream


def open_or_build(
    corpus: Corpus, tokenizer: Encoding, *, directory: Path, report: Callable[[str], None], beat: Callable[[], None]
) -> CachedCorpus:
    """Return the tokens of a corpus, from the cache or after building it there; call `beat` meanwhile.

    Several processes may call this at once: one builds, the others wait for it, report that, and use what it built.
    Raise DataError for data that cannot be used and a file that changes meanwhile, OSError for a disk that cannot be
    written.
    """
    key = cache_key(corpus, tokenizer)
    finished = directory / key
    directory.mkdir(parents=True, exist_ok=True)
    if _damage(finished) is not None:
        waiting = f"waiting for another process to tokenise {corpus.name}"
        with locked(_lock_path(directory, key), lambda: report(waiting), _follower(_building(finished), beat)):
            damage = _damage(finished)
            if damage is not None:
                _remove_rubbish(directory, key, damage, report)
                _build(corpus, tokenizer, finished, report, beat)
    layouts = _layouts(finished)
    return CachedCorpus(train=TokenStream(finished, layouts[TRAIN]), held_out=TokenStream(finished, layouts[HELD_OUT]))


def _follower(building: Path, beat: Callable[[], None]) -> Callable[[], None]:
    """Return a look at what another process builds; it beats only as that grows, since the builder may hang."""
    seen = -1

    def look() -> None:
        nonlocal seen
        with suppress(OSError):  # files come and go
            num_bytes = sum(file.stat().st_size for file in building.iterdir())
            if num_bytes != seen:
                seen = num_bytes
                beat()

    return look


def _building(finished: Path) -> Path:
    return finished.with_name(finished.name + _BUILDING)


def cache_key(corpus: Corpus, tokenizer: Encoding) -> str:
    """Return 32 hex digits: the same for the same content, tokenizer, split and format."""
    identity = {"format": FORMAT_VERSION, "tokenizer": tokenizer.fingerprint, **corpus.identity()}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def _damage(finished: Path) -> str | None:
    """Return what keeps the cache from being used: None if it is whole, "" if it does not exist."""
    if not finished.exists():
        return ""
    for name in (_MARKER, _INDEX):
        if not (finished / name).is_file():
            return f"{name} is missing"
    index = (finished / _INDEX).read_bytes()
    if (finished / _MARKER).read_text() != hashlib.sha256(index).hexdigest():
        return f"{_INDEX} is not what {_MARKER} says"
    for layout in _layouts(finished).values():
        for name, size_bytes in layout.file_sizes_bytes().items():
            path = finished / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != size_bytes:
                return f"{name} has {path.stat().st_size:,} bytes, not {size_bytes:,}"
    return None


def _layouts(finished: Path) -> dict[str, StreamLayout]:
    index = json.loads((finished / _INDEX).read_text())
    return {layout["name"]: StreamLayout(**layout) for layout in index["streams"]}


def _lock_path(directory: Path, key: str) -> Path:
    return directory / f"{key}.lock"


def _remove_rubbish(directory: Path, key: str, damage: str, report: Callable[[str], None]) -> None:
    """Remove our key's damaged cache and every half-written one whose builder is dead. Needs our key's lock."""
    if damage:
        report(f"the data cache {directory / key} is damaged ({damage}): building it again")
        shutil.rmtree(directory / key)
    for half_built in directory.glob(f"*{_BUILDING}"):
        other = half_built.name.removesuffix(_BUILDING)
        if other == key:
            shutil.rmtree(half_built)
            continue
        with try_locked(_lock_path(directory, other)) as is_ours:
            if is_ours:
                shutil.rmtree(half_built, ignore_errors=True)


def _build(
    corpus: Corpus, tokenizer: Encoding, finished: Path, report: Callable[[str], None], beat: Callable[[], None]
) -> None:
    size_bytes = sum(file.size_bytes for file in corpus.files)
    report(f"tokenising {corpus.name}: {len(corpus.files):,} files, {size(size_bytes)}")
    building = _building(finished)
    building.mkdir()
    try:
        layouts = write_streams(corpus, tokenizer, building, report, beat)
        _refuse_changed(corpus, beat)
        _commit(layouts, building, finished)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    tokens, count = (sum(getattr(layout, field) for layout in layouts) for field in ("num_tokens", "num_documents"))
    report(f"tokenised {corpus.name}: {count:,} documents, {tokens:,} tokens")


def _refuse_changed(corpus: Corpus, beat: Callable[[], None]) -> None:
    """Look at each file again; beat after each look, since a bucket takes a request for each."""
    with ThreadPoolExecutor(_THREADS) as pool:
        for file, is_new in zip(corpus.files, pool.map(has_changed, corpus.files), strict=True):
            beat()
            if is_new:
                raise changed_meanwhile(file)


def _commit(layouts: list[StreamLayout], building: Path, finished: Path) -> None:
    index = json.dumps({"format": FORMAT_VERSION, "streams": [asdict(layout) for layout in layouts]}, indent=1)
    replace_file(building / _INDEX, index, durable=True)
    replace_file(building / _MARKER, hashlib.sha256(index.encode()).hexdigest(), durable=True)
    sync_directory(building)
    building.rename(finished)
    sync_directory(finished.parent)
