"""A folder of checkpoints at a local path, file://, gs:// or s3://: small files, one listing, deletion.

A thin layer: TensorStore's key-value stores do the work, which write a local file beside its name, flush it and rename
it, and an object in one request. They list every object below a place, a hundred thousand in a large checkpoint, so
fsspec lists a bucket's folders. Only the chunks of local checkpoints are read without it (`chunks`). What the files
mean is the manifest's business.
"""

import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
import tensorstore as ts

from shardwise.bucket.folder import BUCKET_DRIVERS, RETRIES, description, open_folder
from shardwise.protocol.contract import COMMITTED, checkpoint_name, checkpoint_steps
from shardwise.protocol.files import sync_directory
from shardwise.protocol.storage import may_pass
from shardwise.train.checkpoint.manifest import ARRAYS, SET_ASIDE
from shardwise.train.checkpoint.objects import Objects, aws_settings, signer

_DELETED_AT_ONCE = 1000
"""Objects of a bucket, between two signs that a deletion gets on."""
_MAKING = threading.Lock()
"""Whoever comes while the client is made waits for it, instead of making another."""


def prepare_bucket(root: str, *, lists: bool = True) -> None:
    """Make what signs addresses in the bucket of a root, and what `lists` it.

    That takes up to a second, so a thread can do it beside other work.
    """
    scheme = urlsplit(root).scheme
    if lists and scheme in BUCKET_DRIVERS:
        _lister(root)
    if scheme == "s3":
        signer()


def _lister(root: str) -> tuple[Any, str]:
    """Return fsspec's file system of a root, with its connections, and the root's path there."""
    with _MAKING:
        return _make_lister(root, aws_settings())


@lru_cache(maxsize=4)
def _make_lister(root: str, _settings: tuple[tuple[str, str], ...]) -> tuple[Any, str]:
    filesystem, path = fsspec.core.url_to_fs(root)
    if "s3" in filesystem.protocol:
        filesystem.connect()
    return filesystem, path


class Store:
    """The checkpoints below one root."""

    def __init__(self, root: str) -> None:
        """`root` need not exist yet, but its bucket has to. Raises `CheckpointError` for a URL of another kind."""
        self.root, self._base = root, description(root)
        self._context = ts.Context(RETRIES)  # one for all small files
        self._folder = Path(self._base["path"]) if self._base["driver"] == "file" else None

    def spec(self, step: int, directory: str = "") -> dict[str, Any]:
        """Return TensorStore's description of a directory of a checkpoint."""
        inside = f"{directory}/" if directory else ""
        return {**self._base, "path": f"{self._base['path']}{checkpoint_name(step)}/{inside}"}

    def folder(self) -> ts.KvStore:
        """Return the files beside the checkpoints."""
        return open_folder(self._base, self._context)

    def steps(self) -> dict[int, bool]:
        """Return {step: whether it is committed}, ascending: one listing of folders, and a look for each marker."""
        names = self._list_folder() if self._folder else self._list_bucket()
        found = checkpoint_steps(names)
        looks = {step: self._open(step).read(COMMITTED) for step in found}
        return {step: look.result().state == "value" for step, look in looks.items()}

    def read(self, step: int, name: str, part: slice = slice(None)) -> bytes | None:
        """Return a file of a checkpoint, or the bytes of `part`; None if it does not exist."""
        result = self._open(step).read(name, byte_range=part).result()
        return bytes(result.value) if result.state == "value" else None

    def local_file(self, step: int, name: str) -> Path | None:
        """Return where a file of a checkpoint lies, or None if that is in a bucket."""
        return self._folder and self._folder / checkpoint_name(step) / name

    def objects(self) -> AbstractContextManager[Objects | None]:
        """Return what reads the objects of an S3 bucket straight into memory; None of any other root."""
        return Objects(self._base["bucket"]) if self._base["driver"] == "s3" else nullcontext()

    def key(self, step: int, name: str) -> str:
        """Return the key of a file of a checkpoint in its bucket."""
        return f"{self.spec(step)['path']}{name}"

    def write(self, step: int, name: str, content: bytes) -> None:
        """Replace a small file of a checkpoint as a whole; it is on disk on return."""
        self._open(step).write(name, content).result()

    def flush(self, step: int, directories: Sequence[str]) -> None:
        """Make the names of new directories durable: a file's flush does not reach the folders above its own."""
        if self._folder is None:
            return
        checkpoint = self._folder / checkpoint_name(step)
        for folder in (*(checkpoint / name for name in directories), checkpoint, self._folder):
            sync_directory(folder)

    def delete(self, step: int, moved: Callable[[], None] = lambda: None) -> None:
        """Remove a checkpoint, its marker first, so that a deletion cut short leaves an uncommitted one.

        `moved` is called as the deletion gets on.
        """
        checkpoint = self._open(step)
        checkpoint.write(COMMITTED, None).result()
        if self._folder is None:
            names = checkpoint.list().result()
            for begin in range(0, len(names), _DELETED_AT_ONCE):
                for deleted in [checkpoint.write(name, None) for name in names[begin : begin + _DELETED_AT_ONCE]]:
                    deleted.result()
                moved()
        elif (folder := self._folder / checkpoint_name(step)).exists():
            for array in folder.glob(f"{ARRAYS}/*"):
                shutil.rmtree(array)
                moved()
            shutil.rmtree(folder)

    def set_aside(self, step: int) -> None:
        """Rename the marker of a committed checkpoint, so that it does not count; renamed back, it does."""
        marker = self.read(step, COMMITTED)
        if marker is None:  # a try before this one, whose answer was lost, has renamed it
            return
        self.write(step, SET_ASIDE, marker)
        self._open(step).write(COMMITTED, None).result()

    def is_set_aside(self, step: int) -> bool:
        """Return whether a checkpoint's marker has that other name."""
        return self.read(step, SET_ASIDE) is not None

    def _open(self, step: int) -> ts.KvStore:
        return open_folder(self.spec(step), self._context)

    def _list_folder(self) -> list[str]:
        assert self._folder is not None
        if not self._folder.is_dir():
            return []
        return [entry.name for entry in self._folder.iterdir() if entry.is_dir()]

    def _list_bucket(self) -> list[str]:
        try:
            filesystem, path = _lister(self.root)
            entries = filesystem.ls(path, detail=True, refresh=True)
        except FileNotFoundError:  # also of a bucket that does not exist
            return [key.decode().split("/")[0] for key in self.folder().list().result()]
        except Exception as error:  # each library has its own
            raise (ConnectionError if may_pass(error) else ValueError)(f"{type(error).__name__}: {error}") from error
        return [entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory"]
