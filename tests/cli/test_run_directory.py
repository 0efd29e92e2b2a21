"""shardwise.cli.run_directory: commands that read the run directory of a job whose pods keep it in a bucket."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from tests.cli.conftest import Command
from tests.page.building import make_run
from tests.train.s3_server import Bucket, serving

from shardwise.cli.run_directory import Fetched, fetch
from shardwise.protocol.contract import BUCKET_LEASE, LOGS, METRICS, ExitCode


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """Return an empty bucket."""
    with serving() as one:
        yield one


@pytest.fixture
def run(bucket: Bucket, tmp_path: Path) -> str:
    """Return the key of a complete run's directory, in which are checkpoints and programs that nobody must fetch."""
    directory, key = make_run(tmp_path / "run"), tmp_path.name
    for path in directory.rglob("*"):
        if path.is_file() and not path.name.startswith(".lock"):
            bucket.put(f"{key}/{path.relative_to(directory)}", path.read_bytes())
    bucket.put(f"{key}/checkpoints/step-7/data", b"large")
    bucket.put(f"{key}/programs/all/program", b"large")
    say(bucket, key, live=False)
    return key


def say(bucket: Bucket, key: str, *, live: bool, ago: float = 0.0) -> None:
    """Write the lease of host 0."""
    holder = {"run": "uid", "name": "quickstart", "directory": key, "start": "a", "live": live}
    bucket.put(f"{key}/{BUCKET_LEASE}", json.dumps(holder | {"renewed_at": time.time() - ago}).encode())


def test_status(bucket: Bucket, run: str, tmp_path: Path, command: Command) -> None:
    """It is the status of the same directory on this machine, and names the URL."""
    url = f"{bucket.url}/{run}"
    ended = command("status", url, "--json")
    assert (ended.code, ended.error) == (0, "")
    found, known = (json.loads(text) for text in (ended.out, command("status", str(tmp_path / "run"), "--json").out))
    assert known["status"] == "complete"
    places = ("checkpointRoot", "checkpoints")
    assert {key: found[key] for key in known if key not in places} == {
        key: known[key] for key in known if key not in places
    }
    assert url in command("status", f"{url}/").out


@pytest.mark.parametrize(
    ("lease", "status"),
    [
        ({"live": True, "ago": 1.0}, "running"),
        ({"live": True, "ago": 15.0 + 90.0}, "running"),
        ({"live": True, "ago": 300.0}, "dead"),
        ({"live": False}, "dead"),
    ],
    ids=("renewed", "renewed by a clock that is behind", "not renewed", "given back"),
)
def test_status_of_a_run_that_goes_on(
    bucket: Bucket, run: str, command: Command, lease: dict[str, Any], status: str
) -> None:
    """It lives while its lease is renewed, by the holder's clock; one that was not for minutes is of a dead run."""
    summary = json.loads(bucket.get(f"{run}/summary.json")) | {"status": "running"}
    bucket.put(f"{run}/summary.json", json.dumps(summary).encode())
    say(bucket, run, **lease)
    assert json.loads(command("status", f"{bucket.url}/{run}", "--json").out)["status"] == status


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"<html>no</html>", "<html>no</html>"),
        (b"[1]", "dictionary"),
        (b"{}", "start: Field required"),
        (b'{"run": "a", "name": "b", "directory": "c", "start": "d", "renewed_at": null}', "renewed_at: "),
        (b"\xff\xfe", "utf-8"),
    ],
    ids=("no JSON", "no object", "no fields", "of another type", "no text"),
)
def test_a_lease_that_is_none(bucket: Bucket, run: str, command: Command, content: bytes, found: str) -> None:
    """It is said in words: the file, what was found in it, and what to do."""
    bucket.put(f"{run}/{BUCKET_LEASE}", content)
    ended = command("status", f"{bucket.url}/{run}")
    assert (ended.code, ended.out) == (ExitCode.BAD_INPUT, "")
    for said in (f"{bucket.url}/{run}/{BUCKET_LEASE}: expected", found, "remove the file"):
        assert said in " ".join(ended.error.split())


def test_an_empty_lease(bucket: Bucket, run: str, command: Command) -> None:
    """Nobody holds it, as for the job that starts there next."""
    bucket.put(f"{run}/{BUCKET_LEASE}", b"")
    assert json.loads(command("status", f"{bucket.url}/{run}", "--json").out)["status"] == "complete"


def test_only_what_has_changed(bucket: Bucket, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files come once and again when they change, those that are gone go, and checkpoints and programs never come."""
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path / "cache"))
    directory = fetch(f"{bucket.url}/{run}")
    names = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert {METRICS, "summary.json", "job.yaml"} < names
    assert not [name for name in names if name.startswith(("checkpoints", "programs"))]
    kept = (directory / "job.yaml").stat().st_ino
    log = next(name for name in names if name.startswith(f"{LOGS}/attempt-"))
    bucket.put(f"{run}/{METRICS}", bucket.get(f"{run}/{METRICS}") + b'{"step": 99, "loss": 1.0}\n')
    bucket.delete(f"{run}/{log}")

    assert fetch(f"{bucket.url}/{run}") == directory
    assert (directory / METRICS).read_text().endswith('{"step": 99, "loss": 1.0}\n')
    assert (directory / "job.yaml").stat().st_ino == kept
    assert not (directory / log).exists()
    assert Fetched.read(tmp_path / "run") is None


@pytest.mark.parametrize(
    ("words", "logs"),
    [(["top"], 0), (["status"], 0), (["page", "--out", "-"], 4), (["logs"], 4)],
    ids=("top", "status", "page", "logs"),
)
def test_logs_come_where_they_are_shown(
    words: list[str], logs: int, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1,024 hosts they are that many files for each attempt: what shows none of them does not even list them."""
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path / "cache"))
    listed: list[str] = []
    run, url = make_run(tmp_path / "run"), f"memory://{tmp_path.name}"
    store = MemoryFileSystem()
    store.put(str(run), f"/{tmp_path.name}", recursive=True)
    store.pipe_file(f"/{tmp_path.name}/{BUCKET_LEASE}", b"")

    def ls(store: MemoryFileSystem, path: str, **options: Any) -> list[Any]:
        listed.append(path)
        return list(real(store, path, **options))

    real = MemoryFileSystem.ls
    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    monkeypatch.setattr(MemoryFileSystem, "find", AbstractFileSystem.find)  # which lists folder by folder
    ended = command(words[0], url, *words[1:])

    assert (ended.code, ended.error) == (0, "")
    assert any(path.endswith(f"/{LOGS}") for path in listed)  # the events of the run are there
    assert any("/attempt-" in path for path in listed) is bool(logs)
    assert len(list((tmp_path / "cache").rglob("host-*.log"))) == logs


def test_logs_that_came_stay(bucket: Bucket, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that needs no logs takes none away; the next that needs them fetches those that have changed."""
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path / "cache"))
    url = f"{bucket.url}/{run}"
    directory = fetch(url)
    changed, gone, same = sorted(directory.glob(f"{LOGS}/attempt-*/*.log"))[:3]
    bucket.put(f"{run}/{changed.relative_to(directory)}", b"anew\n")
    bucket.delete(f"{run}/{gone.relative_to(directory)}")
    bucket.put(f"{run}/{METRICS}", b'{"step": 99, "loss": 1.0}\n')
    kept = same.stat().st_ino

    assert fetch(url, logs=False) == directory
    assert (directory / METRICS).read_bytes() == b'{"step": 99, "loss": 1.0}\n'
    assert changed.exists()
    fetch(url)
    assert changed.read_bytes() == b"anew\n"
    assert not gone.exists()
    assert same.stat().st_ino == kept


def test_no_logs_at_all(bucket: Bucket, run: str, command: Command) -> None:
    """A run that ended before its first attempt has a status like any other."""
    for key in bucket.keys(f"{run}/{LOGS}"):
        bucket.delete(key)
    assert json.loads(command("status", f"{bucket.url}/{run}", "--json").out)["status"] == "complete"


def test_page(bucket: Bucket, run: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --out the page lies where the command was called, and has the URL as the directory."""
    monkeypatch.chdir(tmp_path)
    ended = command("page", f"{bucket.url}/{run}")
    assert (ended.code, ended.error) == (0, "")
    assert ended.out.startswith("page.html  ")
    assert f'"directory":"{bucket.url}/{run}"' in (tmp_path / "page.html").read_text()


def test_logs(bucket: Bucket, run: str, tmp_path: Path, command: Command) -> None:
    """They are those of the directory; to follow them is refused, with what does."""
    url = f"{bucket.url}/{run}"
    assert command("logs", url).out == command("logs", str(tmp_path / "run")).out != ""
    refused = command("logs", url, "--follow")
    assert (refused.code, refused.out) == (2, "")
    assert "tj/NAME" in refused.error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status", "s3://bucket/nothing"], "s3://bucket/nothing"),
        (["page", "s3://no-such-bucket/run"], "cannot be read"),
        (["status", "abc://bucket/run"], "abc"),
        (["stop", "s3://bucket/run"], "name its job, tj/NAME"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("bucket")
def test_refused(command: Command, words: list[str], said: str) -> None:
    """What cannot be read is wrong usage, by its URL and what the store said."""
    ended = command(*words)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.error
    assert words[1] in ended.error
