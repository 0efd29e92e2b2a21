"""Token stores: what a job reads of one is what it would have tokenised itself."""

import errno
import gzip
import json
import os
import resource
import tracemalloc
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from tokenizers import Tokenizer, models, pre_tokenizers

from shardwise.job.spec.data import Data
from shardwise.protocol.errors import DataError
from shardwise.train.data import pieces
from shardwise.train.data.blocks import BLOCK_BYTES, BlockCache, Range
from shardwise.train.data.cuts import Even
from shardwise.train.data.dataset import Dataset, Reading, prepare
from shardwise.train.data.folder import Folder
from shardwise.train.data.mixture import Mixture
from shardwise.train.data.opening import Watch
from shardwise.train.data.order import Order
from shardwise.train.data.part_file import PartCounts
from shardwise.train.data.sequences import Sequences, TrainSet
from shardwise.train.data.store_builder import Built, build
from shardwise.train.data.token_store import Index, StoredStream, is_store

PART_BYTES = 5000
SEQ_LEN = 32

NAMED = {"tokenizer": "tokenizer.json", "begin_token": "verse", "end_token": "small"}


def nothing(*_: object) -> None:
    """Takes any report."""


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of every kind; texts and lines that are cut, and some that are not."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1000)
    folder = tmp_path / "corpus"
    folder.mkdir()
    lines = "".join(json.dumps({"text": f"líne {number} " * (1 + number % 7)}) + "\n" for number in range(400)).encode()
    text = "".join(f"verse {number}\n" for number in range(2000)).encode()
    (folder / "a.jsonl").write_bytes(lines)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines.replace(b"ne ", b"na ")))
    (folder / "c.jsonl.zst").write_bytes(zstandard.compress(lines.replace(b"ne ", b"no ")))
    (folder / "d.txt").write_bytes(text)
    (folder / "e.txt").write_bytes(text.replace(b"\n", b" "))
    (folder / "f.txt.gz").write_bytes(gzip.compress(text[:3000]))
    for number in range(8):
        (folder / f"small-{number}.txt").write_text(f"small {number}\n" * 9 * number)
    words = {
        word: number for number, word in enumerate(["[UNK]", "<|endoftext|>", "verse", "small", *map(str, range(500))])
    }
    library = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))  # noqa: S106  no password
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    return folder


def section(corpus: Path, **fields: Any) -> Data:
    """A data section of two sources over the corpus."""
    sources = [
        {"name": "lines", "paths": [f"{corpus}/*.jsonl*"], "weight": 3.0},
        {"name": "texts", "paths": [f"{corpus}/*.txt*"]},
    ]
    return Data.model_validate({"train": sources, "heldOut": 0.3, "attendAcross": "document", **fields})


def stored(data: Data, to: str) -> tuple[list[Built], Data]:
    """The stores of a data section, and the section that names them."""
    made = build(data, to, run=map, progress=nothing, part_bytes=PART_BYTES)
    sources = [source.model_copy(update={"paths": (each.url,)}) for source, each in zip(data.train, made, strict=True)]
    return made, data.model_copy(update={"train": tuple(sources)})


def prepared(data: Data, cache: Path) -> Dataset:
    """What a job prepares."""
    reading = Reading(seq_len=SEQ_LEN, sequences=4, steps=100, seed=3)
    return prepare(data, reading, cache_root=cache, watch=Watch())


def assert_same(one: Dataset, other: Dataset) -> None:
    """Every batch of both is equal bit for bit, and so is what the run is known by."""
    assert one.fingerprint == other.fingerprint
    assert one.sources == other.sources
    assert one.held_out is not None
    assert other.held_out is not None
    pairs = [(one.train, other.train, 2 * one.train.num_sequences), (one.held_out, other.held_out, 50)]
    for here, there, count in pairs:
        batches = [each.rows(np.arange(count)) for each in (here, there)]  # type: ignore[attr-defined]
        for field in ("tokens", "targets", "weights", "segments"):
            assert np.array_equal(*(getattr(batch, field) for batch in batches)), field


@pytest.mark.parametrize("fields", [{}, {"tokenizer": "tokenizer.json"}, NAMED], ids=["byte", "words", "named ends"])
def test_a_job_reads_of_a_store_what_it_would_have_tokenised(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, str]
) -> None:
    """Text, JSONL, gzip and zstd, cut or not, in many parts: equal fingerprint, summary, and batches."""
    monkeypatch.chdir(tmp_path)
    data = section(corpus, **{"tokenizer": "byte", **fields})

    made, naming = stored(data, str(tmp_path / "tokens"))

    assert [len(each.index.parts) > 3 for each in made] == [True, True]
    assert_same(prepared(naming, tmp_path / "cache"), prepared(data, tmp_path / "cache"))


def test_a_store_that_is_whole_is_known_by_its_index(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later start asks for no part of it; one that is gone or cut is made anew, and so is a damaged index."""
    to = tmp_path / "tokens"
    made, _ = stored(section(corpus), str(to))
    files = {path: path.read_bytes() for path in to.glob("*/*")}
    asked, read = list[str](), Folder.read

    def noted(folder: Folder, name: str, *args: Any) -> bytes | None:
        asked.append(name)
        return read(folder, name, *args)

    monkeypatch.setattr(Folder, "read", noted)
    again, _ = stored(section(corpus), str(to))
    assert [(each.num_made, each.index) for each in again] == [(0, each.index) for each in made]
    assert asked.count("index.json") == len(made)
    assert not [name for name in asked if name.endswith(".tokens")]

    first, second = (to / Path(made[0].url).name / f"part-{number:06d}.tokens" for number in (0, 1))
    first.unlink()
    second.write_bytes(files[second][:-1])
    again, _ = stored(section(corpus), str(to))
    assert [each.num_made for each in again] == [2, 0]

    for damaged in (b"", b"{}", files[to / Path(made[0].url).name / "index.json"].replace(b"train_tokens", b"other")):
        (to / Path(made[0].url).name / "index.json").write_bytes(damaged)
        again, _ = stored(section(corpus), str(to))
        assert [each.num_made for each in again] == [0, 0]
    assert {path: path.read_bytes() for path in to.glob("*/*")} == files


def test_the_cache_of_blocks_is_bounded(tmp_path: Path) -> None:
    """It keeps what was used last, in a file of no more than its size that has no name."""
    cache = BlockCache(tmp_path, num_blocks=3)
    contents = {(0, number): bytes([number]) * (BLOCK_BYTES - number) for number in range(5)}
    for number in range(3):
        cache.put((0, number), contents[0, number])
    cache.get((0, 0))
    for number in (3, 4):
        cache.put((0, number), contents[0, number])

    assert {key: cache.get(key) for key in contents} == {**contents, (0, 1): None, (0, 2): None}
    assert not list(tmp_path.iterdir())


def test_a_block_that_the_disk_takes_in_part_is_not_kept(tmp_path: Path) -> None:
    """A write that a nearly full disk has cut short, without an error, never comes back as the block."""
    cache = BlockCache(tmp_path)
    cache.put((0, 0), b"0" * BLOCK_BYTES)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK_BYTES * 3 // 2, hard))
    try:
        cache.put((0, 1), b"1" * BLOCK_BYTES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    cache.put((0, 2), b"2" * BLOCK_BYTES)

    assert [cache.get((0, number)) for number in range(3)] == [b"0" * BLOCK_BYTES, None, b"2" * BLOCK_BYTES]


def test_a_disk_that_is_full_for_a_while_costs_only_what_was_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are in the bucket too: one that has no room is no error, and its place never holds two."""
    cache = BlockCache(tmp_path, num_blocks=2)
    contents = {(0, number): bytes([number]) * BLOCK_BYTES for number in range(5)}

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for number in range(5):
        with monkeypatch.context() as patch:
            if number in (0, 3):
                patch.setattr(os, "pwrite", full)
            cache.put((0, number), contents[0, number])

    kept = {key: content for key in contents if (content := cache.get(key)) is not None}
    assert kept == {key: contents[key] for key in ((0, 2), (0, 4))}


class Arithmetic:
    """The parts of a corpus that nobody has: the token at position p of the stream is p mod 50021."""

    def __init__(self, tokens_per_part: int) -> None:
        self.tokens_per_part, self.num_bytes = tokens_per_part, 0

    def read(self, wanted: Range) -> bytes:
        """Calculates what is asked for."""
        self.num_bytes += wanted.stop - wanted.start
        first = wanted.part * self.tokens_per_part + (wanted.start - 512) // 2
        return (np.arange(first, first + (wanted.stop - wanted.start) // 2) % 50021).astype("<u2").tobytes()

    def prefetch(self, wanted: Iterable[Range]) -> None:
        """Looks at what is wanted."""
        list(wanted)


def test_an_index_of_a_hundred_gigabytes_gives_its_sequences() -> None:
    """Of 25e9 tokens in 1,500 parts each sequence has the right tokens; only those are read, in little memory."""
    tokens_per_part, num_parts, seq_len = 16_666_667, 1500, 4096
    counts = PartCounts(
        train_tokens=tokens_per_part, train_documents=0, held_out_tokens=0, held_out_documents=0, sha256=""
    )
    index = Index(tokenizer="", dtype="<u2", part_bytes=64 << 20, corpus={}, parts=(counts,) * num_parts)
    reader = Arithmetic(tokens_per_part)
    tracemalloc.start()
    stream = StoredStream(index, "train", reader)
    cut = Even(stream.num_tokens, seq_len)
    sequences = Sequences(streams=(stream,), cuts=(cut,), seq_len=seq_len, split_documents=False)
    (count,) = sequences.count()
    order = Order(num_sequences=[count], mixture=Mixture.constant([1.0]), seed=7)
    rows = np.concatenate([np.arange(32), np.arange(count - 32, count)])
    batch = TrainSet(sequences, order).rows(rows)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    _, numbers = order.locate(rows)
    assert count == (tokens_per_part * num_parts - 1) // seq_len
    assert np.array_equal(batch.tokens, (numbers[:, None] * seq_len + np.arange(seq_len)) % 50021)
    assert np.unique(numbers * seq_len // tokens_per_part).size > 50
    assert reader.num_bytes == rows.size * (seq_len + 1) * 2
    assert peak_bytes < 32 << 20


def refusal(data: Data, cache: Path) -> str:
    """Why a job cannot use its data."""
    with pytest.raises(DataError) as caught:
        prepared(data, cache)
    return str(caught.value)


def test_a_folder_with_files_of_a_like_name_is_no_store(corpus: Path) -> None:
    """Others call files .tokens too: only the parts that are written here make an unfinished store of a folder."""
    assert not is_store(str(corpus))
    (corpus / "bpe.tokens").write_bytes(b"a b")
    assert not is_store(str(corpus))
    (corpus / "part-000000.tokens").write_bytes(b"")
    assert is_store(str(corpus))


def test_what_does_not_fit_a_job_is_refused_in_words(corpus: Path, tmp_path: Path) -> None:
    """Another tokenizer, another held-out share, another field, a store among files, and stores that are not whole."""
    (lines, _), naming = stored(section(corpus), str(tmp_path / "tokens"))
    cache, folder = tmp_path / "cache", Path(lines.url)

    other = naming.model_copy(update={"tokenizer": str(tmp_path / "tokenizer.json")})
    assert "was made with the tokenizer byte-257; given tokenizer.json-" in refusal(other, cache)
    assert "holds out 0.3 of its documents; given heldOut 0" in refusal(
        naming.model_copy(update={"held_out": 0.0}), cache
    )
    lines_of, texts_of = naming.train
    others = (lines_of.model_copy(update={"text_field": "content"}), texts_of)
    assert "holds the text of textField text; given content. Take textField out" in refusal(
        naming.model_copy(update={"train": others}), cache
    )
    among = naming.train[0].model_copy(update={"paths": (lines.url, f"{corpus}/a.jsonl")})
    assert "stands among 2 paths; expected it alone" in refusal(naming.model_copy(update={"train": (among,)}), cache)
    with pytest.raises(DataError, match="'lines' names a token store; expected files of text"):
        build(naming, str(tmp_path / "tokens"), run=map, progress=nothing)
    part = folder / "part-000001.tokens"
    part.write_bytes(part.read_bytes()[:-8])
    data = prepared(naming, cache)
    with pytest.raises(DataError, match=r"part-000001\.tokens has .* bytes; expected .* as its index says"):
        data.train.rows(np.arange(data.train.num_sequences))
    (folder / "index.json").unlink()
    assert "is not finished: index.json is missing. Give the same `shardwise tokenize` again" in refusal(naming, cache)

    (mended, _), _ = stored(section(corpus), str(tmp_path / "tokens"))
    assert mended.num_made == 1
    assert_same(prepared(naming, cache), prepared(section(corpus), cache))


def test_a_store_may_have_a_name_that_looks_like_a_glob(corpus: Path, tmp_path: Path) -> None:
    """What `tokenize` has made is what a job trains on, whatever it is called; a glob of files is none."""
    _, naming = stored(section(corpus), str(tmp_path / "tokens[v1]"))

    assert_same(prepared(naming, tmp_path / "cache"), prepared(section(corpus), tmp_path / "cache"))


def test_a_file_that_changes_meanwhile_leaves_no_part(corpus: Path, tmp_path: Path) -> None:
    """What is read for the digest and what is tokenised are the same, or it is an error and nothing is kept."""

    def write_between(doing: str, *_: int) -> None:
        if doing == "tokenising lines":
            (corpus / "a.jsonl").write_text('{"text": "another"}\n')

    with pytest.raises(DataError, match=r"a\.jsonl' changed while it was being tokenised"):
        build(section(corpus), str(tmp_path / "tokens"), run=map, progress=write_between)
    assert not list((tmp_path / "tokens").glob("lines-*/*"))


def test_a_mistake_in_a_cut_file_has_its_own_line(corpus: Path, tmp_path: Path) -> None:
    """Errors name the line of the file, not of the part."""
    lines = (corpus / "a.jsonl").read_text().splitlines()
    lines[300] = "{"
    (corpus / "a.jsonl").write_text("\n".join(lines))

    with pytest.raises(DataError, match=r"a\.jsonl, line 301: not JSON"):
        stored(section(corpus), str(tmp_path / "tokens"))


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: str) -> None:
    """Texts and lines with a mark have the tokens of those without, cut or not, also in a store.

    Texts are known as read without it, since earlier releases read it as text, and all else as before.
    """
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1000)
    packs: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}
    text = "".join(f"verse {number}\n" for number in range(2000)).encode()
    lines = "".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(400)).encode()
    data = {}
    for name, mark in (("plain", b""), ("marked", BOM_UTF8)):
        (tmp_path / name).mkdir()
        for file, content in (("a.txt", text), ("b.txt", text[:900]), ("c.jsonl", lines)):
            (tmp_path / name / f"{file}{packed}").write_bytes(packs[packed](mark + content))
        sources = [
            {"name": kind, "paths": [f"{tmp_path}/{name}/*.{kind}{packed}"], "weight": 1.0} for kind in ("txt", "jsonl")
        ]
        data[name] = Data.model_validate({"train": sources, "heldOut": 0.0, "attendAcross": "document"})
    plain, marked = (prepared(data[name], tmp_path / "cache") for name in ("plain", "marked"))
    made, naming = stored(data["marked"], str(tmp_path / "tokens"))
    assert packed or len(made[0].index.parts) > 3
    rows = np.arange(plain.train.num_sequences)
    for one in (marked, prepared(naming, tmp_path / "cache")):
        assert one.fingerprint == marked.fingerprint
        for field in ("tokens", "targets", "weights", "segments"):
            assert np.array_equal(getattr(one.train.rows(rows), field), getattr(plain.train.rows(rows), field)), field
    kinds = [
        each["files"] for each in (made[0].index.corpus, stored(data["plain"], str(tmp_path / "t"))[0][0].index.corpus)
    ]
    assert [[digest[64:] for digest, *_ in files] for files in kinds] == [["-unmarked"] * 2, [""] * 2]
