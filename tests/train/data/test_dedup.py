"""Documents that an earlier one equals are left out, wherever they are and whoever looks."""

import gzip
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from shardwise.job.spec.data import Data
from shardwise.protocol.errors import DataError
from shardwise.train.data import dedup
from shardwise.train.data.dataset import Dataset, Reading, prepare
from shardwise.train.data.opening import Watch
from shardwise.train.data.store_builder import Built, build

ODD = [f"odd document {number}" * (1 + number % 4) for number in range(1, 900, 2)]
EVEN = [f"even document {number}" * (1 + number % 4) for number in range(0, 900, 2)]


def nothing(*_: object) -> None:
    """Takes any report."""


def as_lines(texts: Sequence[str]) -> bytes:
    """JSONL, with an empty line after each seventh."""
    lines = [json.dumps({"text": text}) + ("\n" if number % 7 else "\n\n") for number, text in enumerate(texts)]
    return "".join(lines).encode()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two sources of every kind of file, with repeats within files, across them, and across sources."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(as_lines([*ODD, *ODD[:50], *EVEN[:10]]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(as_lines([EVEN[0], "", *EVEN[5:100], ODD[7]])))
    parquet.write_table(pa.table({"text": [*EVEN[90:], *ODD[60:80]]}), folder / "c.parquet", row_group_size=50)
    (folder / "d.txt").write_text(EVEN[200])
    (folder / "e.txt").write_text("only here\n" * 3000)  # cut in parts
    (folder / "f.txt").write_text("only here\n" * 3000)
    return folder


def section(corpus: Path, **fields: Any) -> Data:
    """A data section of two sources over the corpus."""
    sources = [
        {"name": "first", "paths": [f"{corpus}/*.jsonl*"], "weight": 3.0},
        {"name": "second", "paths": [f"{corpus}/*.parquet", f"{corpus}/*.txt"]},
    ]
    return Data.model_validate({"train": sources, "heldOut": 0.1, "dedup": "exact", **fields})


def prepared(data: Data, cache: Path) -> Dataset:
    """What a job prepares."""
    reading = Reading(seq_len=32, sequences=4, steps=100, seed=3)
    return prepare(data, reading, cache_root=cache, watch=Watch())


def documents(data: Dataset) -> list[list[str]]:
    """The texts [source] of all documents, in order, training before held-out."""
    found = []
    for number in range(len(data.sources)):
        assert data.held_out is not None
        texts: list[str] = []
        for stream in (data.train._sequences.streams[number], data.held_out._sequences.streams[number]):
            tokens = stream.read(0, stream.num_tokens)
            texts += [bytes(each).decode() for each in np.split(tokens.astype(np.uint8), stream.ends_within(1, 2**40))]
        found.append([text.rstrip("\0") for text in texts if text])
    return found


def test_only_the_first_of_equal_documents_stays(corpus: Path, tmp_path: Path) -> None:
    """In the order of sources, files and lines; what is left is every text once, and the number removed is told."""
    without, everything = (prepared(section(corpus, dedup=each), tmp_path / "cache") for each in ("exact", None))

    first, second = documents(without)
    expected = [*ODD, *EVEN[:100]]
    assert sorted(first) == sorted(expected)
    assert sorted(second) == sorted([*EVEN[100:], "only here\n" * 3000])
    assert [each.num_repeated_documents for each in without.sources] == [50 + 6 + 1, 10 + 20 + 1 + 1]
    assert [each.num_repeated_documents for each in everything.sources] == [None, None]
    counts = [each.num_documents + each.num_held_out_documents for each in everything.sources]
    assert [len(first) + 57, len(second) + 32] == counts
    assert without.fingerprint != everything.fingerprint


def shuffled(act: Callable[[Any], Any], tasks: Sequence[Any], /) -> Iterator[Any]:
    """Runs tasks in another order each time."""
    yield from map(act, random.sample(list(tasks), len(tasks)))


def stored(data: Data, to: Path, run: Any = map) -> list[Built]:
    """The stores of a data section, in small parts."""
    return build(data, str(to), run=run, progress=nothing, part_bytes=5000)


def test_stores_are_the_same_however_they_are_made(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever order tasks run in and however many buckets are searched, the bytes are the same, and so are a job's."""
    plain = stored(section(corpus), tmp_path / "plain")
    monkeypatch.setattr(dedup, "BUCKET_DOCUMENTS", 100)
    other = stored(section(corpus), tmp_path / "other", shuffled)

    assert len(list((tmp_path / "other" / "dedup").glob("*/*.rows"))) > 10
    for one, another in zip(plain, other, strict=True):
        files = [{path.name: path.read_bytes() for path in Path(each.url).iterdir()} for each in (one, another)]
        assert files[0] == files[1]
        assert len(one.index.parts) > 3
    sources = [
        source.model_copy(update={"paths": (each.url,)})
        for source, each in zip(section(corpus).train, plain, strict=True)
    ]
    naming = section(corpus).model_copy(update={"train": tuple(sources)})
    of_store, own = prepared(naming, tmp_path / "cache"), prepared(section(corpus), tmp_path / "cache")
    assert (of_store.fingerprint, of_store.sources) == (own.fingerprint, own.sources)
    assert documents(of_store) == documents(own)


def test_what_dedup_depends_on_is_part_of_the_store(corpus: Path, tmp_path: Path) -> None:
    """Another first source makes another second one; a store without dedup is refused where a job asks for it."""
    _, second = stored(section(corpus), tmp_path / "tokens")
    (corpus / "a.jsonl").write_bytes(as_lines(ODD))
    _, another = stored(section(corpus), tmp_path / "tokens")
    plain, _ = stored(section(corpus, dedup=None), tmp_path / "tokens")

    assert another.url != second.url
    source = section(corpus).train[0].model_copy(update={"paths": (plain.url,)})
    with pytest.raises(DataError, match="was made with no dedup: exact; given exact"):
        prepared(section(corpus).model_copy(update={"train": (source,)}), tmp_path / "cache")
    with pytest.raises(DataError, match="'second' is text where another source is a token store"):
        prepared(section(corpus).model_copy(update={"train": (source, section(corpus).train[1])}), tmp_path / "cache")


def test_many_small_files_take_no_more_looks_than_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out of a part is looked for once: in a bucket a look is dozens of requests, and files are many."""
    within, looks = dedup.Removed.within, []

    def counted(removed: dedup.Removed, first: int, stop: int) -> Any:
        looks.append((first, stop))
        return within(removed, first, stop)

    monkeypatch.setattr(dedup.Removed, "within", counted)
    for number in range(40):
        (tmp_path / f"{number:02d}.txt").write_text(f"text {number % 30} " * 9)
    data = Data.model_validate(
        {"train": [{"name": "all", "paths": [f"{tmp_path}/*.txt"]}], "dedup": "exact"},
    )
    (made,) = build(data, str(tmp_path / "tokens"), run=map, progress=nothing)

    assert made.index.num_removed == 10
    assert sum(part.train_documents for part in made.index.parts) == 30
    assert len(looks) == len(made.index.parts) == 1


@pytest.mark.parametrize("part_bytes", [1 << 26, 3000, 2500, 2000])
def test_ranges_behind_the_last_document_of_a_file_take_no_other_file_s_rows(tmp_path: Path, part_bytes: int) -> None:
    """Blank lines and empty rows at the end of files: each repeat behind them is left out, and the store is made."""
    (tmp_path / "a.jsonl").write_bytes(as_lines(ODD[:40]) + b"\n" * 3000)
    (tmp_path / "b.jsonl").write_bytes(as_lines([*ODD[:40], *EVEN[:40]]))
    parquet.write_table(
        pa.table({"text": [*EVEN[:80], *[""] * 600]}), tmp_path / "c.parquet", row_group_size=80, compression="none"
    )
    parquet.write_table(pa.table({"text": EVEN[:80]}), tmp_path / "d.parquet")
    data = Data.model_validate({"train": [{"name": "all", "paths": [f"{tmp_path}/*.*"]}], "dedup": "exact"})
    (made,) = build(data, str(tmp_path / "tokens"), run=map, progress=nothing, part_bytes=part_bytes)

    assert made.index.num_removed == 40 + 40 + 80
    assert sum(part.train_documents for part in made.index.parts) == 40 + 80
