"""The run directory that a command reads: a folder, or one in a bucket, which is fetched into a folder of this machine.

Checkpoints stay where they are, and so do the trainers' logs, of which each attempt has one for each host, but for the
commands that show them. What was fetched before and is the same in the bucket is not fetched again.
"""

import hashlib
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from pydantic import BaseModel
from rich.console import Console

from shardwise.cli.command import trainer_imports
from shardwise.protocol.cache import cache_directory
from shardwise.protocol.contract import BUCKET_LEASE, LOGS
from shardwise.protocol.errors import RunDirectoryError, UsageError
from shardwise.protocol.files import replace_file
from shardwise.protocol.lease import STALE_SECONDS, Holder

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_INDEX = ".fetched.json"
_CLOCKS_SECONDS = 120.0
"""How far the clock of this machine may be ahead of the holder's, which wrote when the lease was renewed."""
_SHOWN_BYTES = 60  # of a file that is not what was expected


class Fetched(BaseModel):
    """What a folder was fetched from, whether the run lives there, and by its name a digest of each file's listing."""

    url: str
    live: bool
    files: dict[str, str]

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Return what was fetched into a folder; None for a run directory of this machine."""
        try:
            return cls.model_validate_json((directory / _INDEX).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None


def run_directory(given: str, *, logs: bool = False) -> Path:
    """Return a run directory's folder: the one that is named, or of a URL one with what is in the bucket now.

    Args:
        given: a path or a URL.
        logs: whether the trainers' logs must be those of now too.

    Raises:
        UsageError: the bucket cannot be read, holds no run directory there, or the libraries for it are missing.
        RunDirectoryError: its lease is no lease.

    """
    return fetch(given.rstrip("/"), logs=logs) if "://" in given else folder(given)


def run_directory_with_logs(given: str) -> Path:
    """Do as `run_directory`, with the trainers' logs."""
    return run_directory(given, logs=True)


def folder(given: str) -> Path:
    """Return the path of a folder, by which one that is written ./tj/NAME is told from a job in a cluster, tj/NAME."""
    return Path(given).absolute() if given.startswith("./") else Path(given)  # a path itself drops the ./


_DIR: dict[str, Any] = {"help": "A run directory; also one in a bucket.", "metavar": "DIR|URL"}
_DIR_OR_JOB: dict[str, Any] = {
    "help": "A run directory, also one in a bucket, or tj/NAME in a cluster.",
    "metavar": "DIR|URL|tj/NAME",
}
RunDir = Annotated[Path, typer.Argument(**_DIR, parser=run_directory)]
RunDirWithLogs = Annotated[Path, typer.Argument(**_DIR, parser=run_directory_with_logs)]
RunOrJob = Annotated[Path, typer.Argument(**_DIR_OR_JOB, parser=run_directory)]
RunWithLogsOrJob = Annotated[Path, typer.Argument(**_DIR_OR_JOB, parser=run_directory_with_logs)]


def shown(directory: Path) -> str:
    """Return what a person calls a run directory: its URL, or its path."""
    fetched = Fetched.read(directory)
    return fetched.url if fetched else str(directory)


def fetch(url: str, *, logs: bool = True) -> Path:
    """Fetch the files of a run directory, but for checkpoints, programs and traces; raise as `run_directory`.

    Without `logs` the trainers' logs are not asked for: those that came before stay as they were.
    """
    with trainer_imports():
        from fsspec.core import url_to_fs
    directory = cache_directory() / "runs" / hashlib.sha256(url.encode()).hexdigest()[:16]
    directory.mkdir(parents=True, exist_ok=True)
    with Console(stderr=True).status(f"reading {url}"):
        try:
            store, root = url_to_fs(url, use_listings_cache=False)
            there = dict(_listed(store, root, logs=logs))
            if not logs:
                there |= _logs_before(directory)
            if BUCKET_LEASE in there:
                _bring(store, root, there, directory)
        except Exception as error:  # each store's library raises its own
            raise UsageError(f"{url} cannot be read: {type(error).__name__}: {error}") from error
    if BUCKET_LEASE not in there:
        raise UsageError(
            f"{url} is no run directory ({BUCKET_LEASE} is not in it); expected a job's spec.pod.directory"
        )
    live = _is_held(url, (directory / BUCKET_LEASE).read_bytes())
    replace_file(directory / _INDEX, Fetched(url=url, live=live, files=there).model_dump_json(), durable=False)
    return directory


def _is_held(url: str, lease: bytes) -> bool:
    """Return whether the lease says that a run lives there; RunDirectoryError for a file that is no lease."""
    try:
        holder = Holder.read(lease)
    except ValueError as error:
        raise RunDirectoryError(
            f"{url}/{BUCKET_LEASE}: expected the lease of a job's host 0, found {lease[:_SHOWN_BYTES]!r} ({error}); "
            "if no job uses this directory, remove the file: the next start of its job writes it anew"
        ) from error
    return holder is not None and holder.live and time.time() - holder.renewed_at < STALE_SECONDS + _CLOCKS_SECONDS


def _listed(store: "AbstractFileSystem", root: str, *, logs: bool) -> Iterator[tuple[str, str]]:
    """Yield each file that commands read, by its name in the run directory, with a digest of what the store lists."""
    files: dict[str, Mapping[str, Any]] = {entry["name"]: entry for entry in store.ls(root, detail=True)}
    if logs:
        files |= store.find(f"{root}/{LOGS}", detail=True)
    else:  # the launcher's own files are there, and a folder for each attempt; some stores' `find` lists those whole
        with suppress(FileNotFoundError):  # a run that has not started yet has none
            files |= {entry["name"]: entry for entry in store.ls(f"{root}/{LOGS}", detail=True)}
    for path, entry in files.items():
        name = path.removeprefix(f"{root}/")
        if entry["type"] == "file" and ".." not in PurePosixPath(name).parts:
            yield name, hashlib.sha256(repr(sorted(entry.items())).encode()).hexdigest()


def _logs_before(directory: Path) -> dict[str, str]:
    """Return the trainers' logs that were fetched before, as they were listed then."""
    before = Fetched.read(directory)
    known = before.files if before else {}
    return {
        name: listed
        for name, listed in known.items()
        if PurePosixPath(name).match(f"{LOGS}/*/*") and (directory / name).is_file()
    }


def _bring(store: "AbstractFileSystem", root: str, there: Mapping[str, str], directory: Path) -> None:
    """Make the folder's files those of the bucket, each one whole at any moment."""
    before = Fetched.read(directory)
    known = before.files if before else {}
    for name in known.keys() - there.keys():
        (directory / name).unlink(missing_ok=True)
    changed = [name for name, listed in there.items() if known.get(name) != listed or not (directory / name).is_file()]
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        partial = [Path(folder) / name for name in changed]
        for path in partial:
            path.parent.mkdir(parents=True, exist_ok=True)
        store.get([f"{root}/{name}" for name in changed], [str(path) for path in partial])
        for name, path in zip(changed, partial, strict=True):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            path.replace(directory / name)
