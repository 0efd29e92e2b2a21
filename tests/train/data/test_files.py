"""Finding and reading data files."""

import errno
import gzip
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import pytest
import zstandard
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from shardwise.job.paths import absolute_glob
from shardwise.protocol.errors import DataError, StorageError
from shardwise.train.data import steady
from shardwise.train.data.digests import file_digests
from shardwise.train.data.files import find_files, has_changed, read_blocks

TEXT = b"some text\n" * 1000


def write(path: Path, content: bytes = TEXT) -> Path:
    """Writes a file, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def read(pattern: Path | str) -> bytes:
    """All that the pattern's files hold, one after the other."""
    return b"".join(block for file in find_files([str(pattern)]) for block in read_blocks(file))


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A web server of a folder; gives its address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def unlisted(monkeypatch: pytest.MonkeyPatch, folder: str, error: int) -> None:
    """Has listing a folder fail with this number."""
    listed = os.scandir

    def failing(path: str) -> Any:
        if str(path).endswith(folder):
            raise OSError(error, os.strerror(error))  # which makes it a PermissionError, where it is one
        return listed(path)

    monkeypatch.setattr(os, "scandir", failing)


def test_globs_are_recursive_sorted_and_without_repeats(tmp_path: Path) -> None:
    """`**` reaches every depth, files come sorted by path, and a file that two patterns match comes once."""
    for name in ("b.txt", "deep/er/a.txt", "deep/c.txt", "deep/c.md"):
        write(tmp_path / name)

    files = find_files([f"{tmp_path}/**/*.txt", f"{tmp_path}/b.txt", f"{tmp_path}/*.txt"])

    assert [file.url for file in files] == [f"{tmp_path}/{name}" for name in ("b.txt", "deep/c.txt", "deep/er/a.txt")]
    assert [file.named for file in files] == [True, False, False]


def matched(folder: Path, *patterns: str) -> list[str]:
    """What patterns below a folder match, by the paths from there."""
    return [file.url.removeprefix(f"{folder}/") for file in find_files(f"{folder}/{pattern}" for pattern in patterns)]


def test_a_glob_enters_links_to_folders(tmp_path: Path) -> None:
    """A folder that is a link to another disk has its files found, and one that leads back here ends no search."""
    for name in ("data/a/1.txt", "disk/2.txt", "disk/b/3.txt"):
        write(tmp_path / name)
    (tmp_path / "data/linked").symlink_to(tmp_path / "disk")
    (tmp_path / "disk/b/back").symlink_to(tmp_path / "data")
    (tmp_path / "data/circle").symlink_to("circle")
    (tmp_path / "data/nowhere.txt").symlink_to("nothing")

    everything = ["data/a/1.txt", "data/linked/2.txt", "data/linked/b/3.txt"]
    assert matched(tmp_path, "data/**/*.txt") == matched(tmp_path, "data/**") == everything
    assert matched(tmp_path, "data/*/*.txt") == ["data/a/1.txt", "data/linked/2.txt"]
    assert matched(tmp_path, "data/**/**/*/1.txt", "data/a/**/**/1.txt") == ["data/a/1.txt"]
    assert matched(tmp_path, "data/**/b/*.txt") == matched(tmp_path, "data/**/**/b/*") == ["data/linked/b/3.txt"]
    assert matched(tmp_path, "data/l*/[!3].txt", "data/linked/b/?.txt") == ["data/linked/2.txt", "data/linked/b/3.txt"]


def test_hidden_files_are_found_by_name_alone(tmp_path: Path) -> None:
    """What editors and notebooks leave beside a text is no data, unless the dot is written out."""
    for name in ("a.txt", ".a.txt", ".a.txt.swp", ".kept/b.txt", "deep/.ipynb_checkpoints/a-checkpoint.txt"):
        write(tmp_path / name)

    for pattern in ("*", "**", "**/*.txt", "*.txt", "?*.txt"):
        assert matched(tmp_path, pattern) == ["a.txt"]
    assert matched(tmp_path, ".kept/*") == matched(tmp_path, ".k*/*.txt") == [".kept/b.txt"]
    assert matched(tmp_path, "*/.ipynb_checkpoints/*") == ["deep/.ipynb_checkpoints/a-checkpoint.txt"]
    assert matched(tmp_path, ".a.txt", ".*.swp") == [".a.txt", ".a.txt.swp"]


def test_a_file_comes_once_however_its_path_is_written(tmp_path: Path) -> None:
    """Two ways to one file do not train on it twice; it keeps the format of the path that is given."""
    write(tmp_path / "data/a.txt")
    write(tmp_path / "blobs/0123")
    (tmp_path / "data/b.jsonl").symlink_to(tmp_path / "blobs/0123")
    (tmp_path / "again").symlink_to(tmp_path / "data")

    files = find_files(f"{tmp_path}/{each}" for each in ("data/*", "data/../data/a.txt", "data//a.txt", "again/*"))

    assert [Path(file.url).name for file in files] == ["b.jsonl", "a.txt"]
    assert [file.named for file in files] == [False, True]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("depth", ["*/*", "**"])
def test_a_folder_that_cannot_be_listed_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: str
) -> None:
    """A glob over a volume that fails for one folder gives an error, and no data that are fewer."""
    write(tmp_path / "a/b/1.txt")
    write(tmp_path / "a/c/2.txt")
    unlisted(monkeypatch, "a/c", errno.ESTALE)
    with pytest.raises(StorageError, match=r"cannot read .*Stale file handle"):
        find_files([f"{tmp_path}/{depth}/*.txt"])


def test_a_folder_of_others_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `lost+found` at the root of a volume, which only root may read, is no data and no error."""
    write(tmp_path / "lost+found/1.txt")
    write(tmp_path / "a/2.txt")
    unlisted(monkeypatch, "lost+found", errno.EACCES)
    assert [file.url for file in find_files([f"{tmp_path}/**/*.txt"])] == [f"{tmp_path}/a/2.txt"]


def test_relative_paths_and_names_with_brackets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path counts from the working directory; a file whose name looks like a glob is that file."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "notes[1].txt", b"one")

    assert read("notes[1].txt") == b"one"


@pytest.mark.parametrize("name", ["my runs [1]", "what?", "a*b", "[[]x]"])
def test_a_working_directory_named_like_a_glob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its name is only a name: a relative glob finds what is below it, or beside it, and a plain path stays plain."""
    here = tmp_path / name
    for file in ("data/a.txt", "data/deep/b[1].txt", "data/c.md"):
        write(here / file)
    (here / "work").mkdir()
    monkeypatch.chdir(here / "work")
    # Not even listed: it may be a folder that only others may list.
    monkeypatch.setattr(os, "scandir", refusing(os.scandir, tmp_path))

    expected = [f"{here}/data/a.txt", f"{here}/data/deep/b[1].txt"]
    assert [os.path.normpath(file.url) for file in find_files(["../data/**/*.txt"])] == expected
    monkeypatch.chdir(here)
    assert [file.url for file in find_files(["data/**/*.txt"])] == expected
    assert [file.url for file in find_files(["./data/deep/b[1].txt"])] == expected[1:]
    assert [file.url for file in find_files([absolute_glob("data/**/*.txt")])] == expected


def refusing(listed: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """Return what lists folders as before, but this one."""

    def list_(path: Any) -> Any:
        assert Path(path) != folder
        return listed(path)

    return list_


def test_links_are_read_as_what_they_point_to(tmp_path: Path) -> None:
    """A symbolic link to a file is a file of its target's size."""
    write(tmp_path / "real.txt")
    (tmp_path / "link.md").symlink_to(tmp_path / "real.txt")

    (file,) = find_files([f"{tmp_path}/*.md"])

    assert (file.size_bytes, b"".join(read_blocks(file))) == (len(TEXT), TEXT)


@pytest.mark.parametrize(
    ("suffix", "packed"),
    [
        (".gz", gzip.compress(TEXT)),
        (".gz", gzip.compress(TEXT[:50]) + gzip.compress(TEXT[50:])),
        (".zst", zstandard.compress(TEXT)),
        (".ZST", zstandard.compress(TEXT[:50]) + zstandard.compress(TEXT[50:])),
    ],
    ids=["gzip", "gzip of two members", "zstd", "zstd of two frames"],
)
def test_compressed_files_are_unpacked(tmp_path: Path, suffix: str, packed: bytes) -> None:
    """Gzip and zstd are recognised by suffix; several members or frames in one file are one text."""
    assert read(write(tmp_path / f"x.txt{suffix}", packed)) == TEXT


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
def test_a_small_file_of_much_text_is_unpacked_bit_by_bit(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    """What is held at a time has a bound: 512 MiB may be packed into 16 KiB."""
    (file,) = find_files([str(write(tmp_path / f"x.txt{suffix}", pack(bytes(1 << 29))))])
    sizes = [len(block) for block in read_blocks(file)]
    assert sum(sizes) == 1 << 29
    assert max(sizes) < 40 << 20


@pytest.mark.parametrize(
    ("suffix", "broken", "words"),
    [
        (".gz", gzip.compress(TEXT)[:-9], "not a whole gzip file"),
        (".gz", TEXT, "not a whole gzip file"),
        (".gz", gzip.compress(TEXT)[:12] + b"\xff" * 30, "not a whole gzip file"),
        (".zst", zstandard.compress(TEXT)[:-5], "not a whole zstd file"),
        (".zst", TEXT, "not a whole zstd file"),
    ],
    ids=["gzip cut short", "no gzip", "gzip overwritten", "zstd cut short", "no zstd"],
)
def test_damaged_compressed_files_are_refused(tmp_path: Path, suffix: str, broken: bytes, words: str) -> None:
    """A truncated file, or one that is not what its suffix says, is named and refused."""
    path = write(tmp_path / f"x.txt{suffix}", broken)

    with pytest.raises(DataError, match=words) as caught:
        read(path)

    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("nothing/*.txt", "no file matches 'nothing/"),
        ("missing.txt", "no file matches 'missing.txt'"),
        (".", r"is a folder; expected a file, a glob, or .* Write './\*\*'"),
        ("nosuch://bucket/x", "cannot read 'nosuch://bucket/x'"),
        ("/proc/self/mem", "cannot read '/proc/self/mem'"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, words: str
) -> None:
    """A pattern without files, a folder, an unknown protocol and a file that fails to read each say so."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DataError, match=words):
        read(pattern)


@pytest.mark.usefixtures("at_once")
def test_a_file_that_the_storage_does_not_give_is_not_the_persons_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some tries it is said with the file's name, and another start may do better."""

    def broken(_: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(steady, "_open", broken)
    with pytest.raises(StorageError, match=r"cannot read '.*x\.txt'.*Input/output error"):
        read(write(tmp_path / "x.txt"))


@pytest.mark.usefixtures("at_once")
def test_an_error_that_passes_loses_and_repeats_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading goes on where it was, whether the storage failed to open the file or in the middle of it."""
    path = write(tmp_path / "x.txt.gz", gzip.compress(TEXT))
    opened: list[Any] = []

    class Shaky(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if len(opened) == 2:
                super().read(5)
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return super().read(min(size or 0, 7)) or b""

    def shaky(_: str) -> Any:
        opened.append(None)
        if len(opened) == 1:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        return Shaky(path)

    monkeypatch.setattr(steady, "_open", shaky)
    assert read(path) == TEXT
    assert len(opened) == 3


def test_remote_files_are_found_and_read() -> None:
    """An address with a protocol works as a path does: glob, compression, address in full."""
    store = fsspec.filesystem("memory")
    store.pipe({"/bucket/b/1.txt.gz": gzip.compress(b"one"), "/bucket/b/2.txt": b"two", "/bucket/b/3.md": b"three"})

    files = find_files(["memory://bucket/b/*.txt*"])

    assert [file.url for file in files] == ["memory:///bucket/b/1.txt.gz", "memory:///bucket/b/2.txt"]
    assert read("memory://bucket/b/*.txt*") == b"onetwo"


class Watched(MemoryFileSystem):  # type: ignore[misc]
    """A remote store that gives entity tags in its listings, and notes and may fail looks at a single file."""

    protocol = "watched"
    store: dict[str, Any] = {}  # noqa: RUF012  what all instances share, as the base has it
    looks: list[str] = []  # noqa: RUF012  the same
    fails = 0
    isfile = AbstractFileSystem.isfile  # as buckets have it

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("watched://")))

    def glob(self, path: str, **_: Any) -> Any:
        """List what matches."""
        return {name: each | {"etag": name} for name, each in super().glob(path, detail=True).items()}

    def info(self, path: str, **given: Any) -> Any:
        """Look at a single file."""
        Watched.looks.append(path)
        if Watched.fails:
            Watched.fails -= 1
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        return super().info(path, **given)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> MemoryFileSystem:
    """A store of a hundred files, and nobody has looked at one."""
    fsspec.register_implementation("watched", Watched, clobber=True)
    monkeypatch.setattr(Watched, "store", {})
    store = fsspec.filesystem("watched")
    store.pipe({f"/bucket/w/{number}.txt": b"text" for number in range(100)})
    monkeypatch.setattr(Watched, "looks", [])
    return store


@pytest.mark.usefixtures("watched")
def test_a_listing_is_all_that_a_glob_asks_for() -> None:
    """A look at each file takes hours where there are 100,000: a request each, or a search of the whole listing."""
    files = find_files(["watched://bucket/w/*.txt"])

    expected = {(4, f"etag:/bucket/w/{number}.txt") for number in range(100)}
    assert {(file.size_bytes, file.stamp) for file in files} == expected
    assert len(Watched.looks) < 10


@pytest.mark.usefixtures("at_once", "watched")
def test_a_look_that_fails_is_no_file_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the storage cannot say now is asked again, and is neither a person's mistake nor one file fewer."""
    monkeypatch.setattr(Watched, "fails", 1)
    assert [file.named for file in find_files(["watched://bucket/w/7.txt"])] == [True]
    monkeypatch.setattr(Watched, "fails", 1000)
    with pytest.raises(StorageError, match=r"cannot read 'watched://bucket/w/7.txt': ConnectionResetError"):
        find_files(["watched://bucket/w/7.txt"])


def test_a_rewritten_file_has_changed(tmp_path: Path) -> None:
    """The stamp tells a rewritten file from an untouched one, on a local disk and in a remote store."""
    store = fsspec.filesystem("memory")
    store.pipe("/bucket/changing.txt", b"old")
    path = write(tmp_path / "x.txt")
    files = find_files([str(path), "memory://bucket/changing.txt"])
    before = [has_changed(file) for file in files]
    path.write_bytes(b"new")
    store.pipe("/bucket/changing.txt", b"new")

    assert (before, [has_changed(file) for file in files]) == ([False, False], [True, True])


def test_a_listing_that_gives_names_alone(tmp_path: Path) -> None:
    """Files that a web server lists have their sizes all the same: each is asked for."""
    write(tmp_path / "a.txt")
    write(tmp_path / "b.txt", b"other")
    with serving(tmp_path) as address:
        files = find_files([f"{address}/*.txt"])

    assert [file.size_bytes for file in files] == [len(TEXT), len(b"other")]


def test_an_address_with_a_query_has_the_format_of_its_path(tmp_path: Path) -> None:
    """What a site appends to a link, such as `?download=true`, is no part of a name: lines stay lines, and unpacked."""
    write(tmp_path / "a.jsonl.gz", gzip.compress(TEXT))
    write(tmp_path / "b?c.txt")
    with serving(tmp_path) as address:
        url = f"{address}/a.jsonl.gz?download=true"
        (file,) = find_files([url])
        assert (file.url, file.suffixes) == (url, (".jsonl", ".gz"))
        assert read(url) == TEXT
    (local,) = find_files([f"{tmp_path}/b?c.txt"])
    assert local.suffixes == (".txt", "")


def test_a_text_of_a_web_server_without_tags_is_read_anew(tmp_path: Path) -> None:
    """Nothing says for sure that it is as it was: its own content does."""
    write(tmp_path / "a.txt")
    with serving(tmp_path) as address:
        digests: list[str] = []
        for content in (TEXT, TEXT[::-1]):
            write(tmp_path / "a.txt", content)
            found = find_files([f"{address}/a.txt"])
            digests += file_digests(found, memo_path=tmp_path / "memo", report=print, beat=lambda: None)
    assert digests[0] != digests[1]
