"""Data in an S3 bucket, over HTTP."""

import errno
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from s3fs import S3FileSystem
from tests.train.s3_server import Bucket, serving

from shardwise.job.spec.data import Data
from shardwise.protocol.errors import DataError
from shardwise.train.data import blocks
from shardwise.train.data.compression import BLOCK_BYTES
from shardwise.train.data.dataset import Dataset, Reading, prepare
from shardwise.train.data.files import find_files, has_changed, read_blocks
from shardwise.train.data.folder import Folder
from shardwise.train.data.opening import Watch
from shardwise.train.data.store_builder import build

LINES = "".join(json.dumps({"text": f"document {number} " * 9}) + "\n" for number in range(200)).encode()
FILES = {
    "a.txt": b"plain text\n" * 300,
    "deep/er/b.txt.gz": gzip.compress(b"text in gzip\n" * 300),
    "deep/c.jsonl.zst": zstandard.compress(LINES),
    "deep/d.jsonl": LINES.replace(b"document", b"other"),
    "deep/not-this.md": b"x",
}


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """One for all tests; each has a prefix of its own."""
    with serving() as bucket:
        yield bucket


def section(root: str) -> Data:
    """The data below `root` in two sources."""
    sources = [
        {"name": "text", "paths": [f"{root}/a.txt", f"{root}/**/*.txt.gz"]},
        {"name": "lines", "paths": [f"{root}/deep/*.jsonl*"], "weight": 2.0},
    ]
    return Data.model_validate({"train": sources, "heldOut": 0.2, "attendAcross": "document"})


def prepared(data: Data, cache: Path) -> tuple[Dataset, list[str]]:
    """What a job prepares, and what was reported."""
    reports: list[str] = []
    return prepare(
        data,
        Reading(seq_len=32, sequences=4, steps=100, seed=3),
        cache_root=cache,
        watch=Watch(report=reports.append),
    ), reports


def test_an_object_that_stands_for_a_folder_is_no_file(bucket: Bucket) -> None:
    """Consoles make empty ones whose names end with a slash, in which a glob of everything finds no text."""
    bucket.put("folders/deep/a.txt", b"text")
    for name in ("folders/", "folders/empty/"):
        bucket.client.call_s3("put_object", Bucket="bucket", Key=name, Body=b"")

    assert [file.url for file in find_files([f"{bucket.url}/folders/**"])] == [f"{bucket.url}/folders/deep/a.txt"]


def test_a_folder_that_cannot_be_listed_is_not_left_out(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that refuses to list one of several folders, as with a login that has ended, is an error."""
    for folder in ("a", "b"):
        bucket.put(f"forbidden/{folder}/1.txt", b"text")
    listed = S3FileSystem._lsdir

    async def refusing(self: S3FileSystem, path: str, *given: Any, **named: Any) -> Any:
        if path.rstrip("/").endswith("forbidden/b"):
            raise PermissionError(errno.EACCES, "Forbidden")
        return await listed(self, path, *given, **named)

    monkeypatch.setattr(S3FileSystem, "_lsdir", refusing)
    with pytest.raises(DataError, match=r"cannot read '.*/forbidden/\*/\*\.txt': .*Forbidden"):
        find_files([f"{bucket.url}/forbidden/*/*.txt"])


def test_data_is_the_same_in_a_bucket_and_on_a_disk(bucket: Bucket, tmp_path: Path) -> None:
    """By name and by glob, plain, gzip and zstd: equal fingerprint, equal documents, equal training tokens."""
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
        bucket.put(f"same/{name}", content)

    local, _ = prepared(section(str(tmp_path)), tmp_path / "cache-of-disk")
    remote, reports = prepared(section(f"{bucket.url}/same"), tmp_path / "cache-of-bucket")

    assert sum(line.startswith("tokenised") for line in reports) == 2
    assert remote.fingerprint == local.fingerprint
    assert remote.sources == local.sources
    assert [source.num_files for source in remote.sources] == [2, 2]
    rows = np.arange(local.train.num_sequences)
    assert np.array_equal(remote.train.rows(rows).tokens, local.train.rows(rows).tokens)


def test_a_store_in_a_bucket_is_read_by_ranges(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From text in a bucket to a store in one to the same batches; a row costs the blocks that it lies in, once."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 512)
    for name, content in FILES.items():
        bucket.put(f"text/{name}", content)
    data, to = section(f"{bucket.url}/text"), f"{bucket.url}/tokens"
    made = build(data, to, run=map, progress=lambda *_: None, part_bytes=3000)
    again = build(data, to, run=map, progress=lambda *_: None, part_bytes=3000)
    assert [(each.num_made > 1, later.num_made) for each, later in zip(made, again, strict=True)] == [(True, 0)] * 2
    own, _ = prepared(data, tmp_path / "own")
    sources = [source.model_copy(update={"paths": (each.url,)}) for source, each in zip(data.train, made, strict=True)]
    asked: list[int] = []
    read = Folder.read

    def seen(self: Folder, name: str, start: int = 0, stop: int | None = None) -> bytes | None:
        asked.append((stop or 1 << 60) - start)
        return read(self, name, start, stop)

    stored, reports = prepared(data.model_copy(update={"train": tuple(sources)}), tmp_path / "cache")
    monkeypatch.setattr(Folder, "read", seen)
    first = stored.train.rows(np.arange(2))
    assert 0 < sum(asked) <= 2 * 10 * 512
    asked.clear()
    assert np.array_equal(stored.train.rows(np.arange(2)).tokens, first.tokens)
    assert not asked

    assert [line.partition(":")[0] for line in reports] == ["text", "lines"]
    assert stored.fingerprint == own.fingerprint
    assert stored.sources == own.sources
    rows = np.arange(own.train.num_sequences)
    here, there = own.train.rows(rows), stored.train.rows(rows)
    assert np.array_equal(here.tokens, there.tokens)
    assert np.array_equal(here.segments, there.segments)


def test_a_large_object_is_read_whole_in_blocks(bucket: Bucket) -> None:
    """An object above the block size comes in several requests and loses nothing."""
    content = np.random.default_rng(0).bytes(3 * BLOCK_BYTES + 17)
    bucket.put("large.txt", content)

    (file,) = find_files([f"{bucket.url}/large.txt"])
    blocks = list(read_blocks(file))

    assert file.size_bytes == len(content)
    assert max(map(len, blocks)) <= BLOCK_BYTES
    assert b"".join(blocks) == content


def test_a_rewritten_object_has_changed(bucket: Bucket) -> None:
    """The stamp sees other content of the same size, and nothing where nothing was written, by name and by glob."""
    bucket.put("changing/a.txt", b"old")
    (named,) = find_files([f"{bucket.url}/changing/a.txt"])
    (matched,) = find_files([f"{bucket.url}/changing/*.txt"])
    before = (has_changed(named), has_changed(matched))

    bucket.put("changing/a.txt", b"new")

    assert named.stamp == matched.stamp
    assert (before, (has_changed(named), has_changed(matched))) == ((False, False), (True, True))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("s3://bucket/nothing/*.txt", "no file matches 's3://bucket/nothing/"),
        ("s3://bucket/nothing.txt", "no file matches 's3://bucket/nothing.txt'"),
        ("s3://no-such-bucket/a.txt", "'s3://no-such-bucket/a.txt'"),
        ("s3://bucket/cut/*.gz", "'s3://bucket/cut/a.txt.gz' is not a whole gzip file"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_address(bucket: Bucket, path: str, words: str) -> None:
    """No object, no bucket and half an object are each an error that holds the address."""
    bucket.put("cut/a.txt.gz", FILES["deep/er/b.txt.gz"][:-9])

    with pytest.raises(DataError, match=words):
        [list(read_blocks(file)) for file in find_files([path])]


def test_a_store_in_a_bucket_that_is_not_there_is_refused_in_words(bucket: Bucket, tmp_path: Path) -> None:
    """Whoever writes there is told which address, and that it is the bucket: nothing is wrong with the data."""
    (tmp_path / "a.txt").write_text("text")
    data = Data.model_validate({"train": [{"name": "text", "paths": [f"{tmp_path}/a.txt"]}]})
    to = f"{bucket.url}-that-is-not-there"

    with pytest.raises(DataError, match=rf"cannot write '?{to}/tokens/.*bucket does not exist.* check the address"):
        build(data, f"{to}/tokens", run=map, progress=lambda *_: None)
    folder = Folder(to)
    assert (folder.read("a.txt"), folder.size("a.txt"), folder.sizes(), folder.exists()) == (None, None, {}, False)
