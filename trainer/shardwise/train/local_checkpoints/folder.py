"""What one host has of local checkpoints: folders in the usual format, each with the files of a few ranks.

    step-00000120/
        arrays/<path>/c.0.1 ...   the files of this host's rank, and copies of another's
        manifest.json, COMMITTED  as in any checkpoint, the same bytes on every host
        parts.json                written last: whose files these are

A folder without the last is no checkpoint.
"""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import jax

from shardwise.protocol.contract import COMMITTED, checkpoint_name
from shardwise.protocol.errors import CheckpointError
from shardwise.protocol.message import Message
from shardwise.train.checkpoint.layout import Layout
from shardwise.train.checkpoint.manifest import MANIFEST, Manifest, array_directory, decode
from shardwise.train.checkpoint.store import Store

_PARTS = "parts.json"
_SMALL_BYTES = 1 << 20


class Parts(Message):
    """Whose files of a checkpoint a host has: those of these `ranks`, of as many `processes`."""

    processes: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """What a host's folder has of a checkpoint.

    `id` is the SHA-256 of its manifest, by which hosts compare theirs; `parts` is None until all its files are there.
    """

    manifest: Manifest
    id: str
    parts: Parts | None

    @property
    def step(self) -> int:
        """Return the steps that it has taken."""
        return self.manifest.step


class LocalFolder:
    """The folder of one host, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        """Read nothing yet."""
        self.path, self.store = path, Store(str(path))

    def held(self) -> Iterator[Held]:
        """Yield what is committed, in no order; OSError if the folder cannot be read."""
        for step in self.store.steps():
            if held := self.read(step):
                yield held

    def read(self, step: int) -> Held | None:
        """Return what there is of a step; None if a save was cut short, and it is no checkpoint."""
        content = self.store.read(step, MANIFEST)
        try:
            manifest = decode(content, self.store.read(step, COMMITTED), step)
        except CheckpointError:
            return None
        parts = Parts.loads(self.store.read(step, _PARTS) or b"")
        return Held(manifest, hashlib.sha256(content or b"").hexdigest(), parts)

    def has(self, step: int, name: str) -> bool:
        """Return whether a file of a step is there."""
        return (self.path / checkpoint_name(step) / name).is_file()

    def commit(self, step: int, parts: Parts, manifest: bytes, marker: bytes) -> None:
        """Write what makes the files of a step a checkpoint; OSError, ValueError if the folder takes no more."""
        self.store.write(step, MANIFEST, manifest)
        self.store.write(step, COMMITTED, marker)
        self.note(step, parts)

    def note(self, step: int, parts: Parts) -> None:
        """Write down, last of all, whose files are there."""
        self.store.write(step, _PARTS, parts.model_dump_json().encode())

    def make_room(self, step: int) -> None:
        """Make the folder, for this user alone, and remove what a save of this step that was cut short has left."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.remove(step)

    def remove(self, step: int) -> None:
        """Remove a step; what cannot be removed stays, and is no checkpoint."""
        _remove(self.path / checkpoint_name(step))

    def keep_only(self, step: int) -> None:
        """Remove all other steps, whole or not."""
        for folder in self.path.glob("step-*"):
            if folder.name != checkpoint_name(step):
                _remove(folder)

    def clear(self) -> None:
        """Remove all steps."""
        for folder in self.path.glob("step-*"):
            _remove(folder)


def _remove(folder: Path) -> None:
    (folder / _PARTS).unlink(missing_ok=True)  # first: what is removed in part is no checkpoint
    shutil.rmtree(folder, ignore_errors=True)


def of_all_ranks(layouts: Mapping[str, Layout], arrays: Mapping[str, jax.Array], rank: int) -> dict[str, Layout]:
    """Return the layouts by which a rank also writes the small arrays that each process holds, and one writes.

    With those of its own, a host that stays needs nothing of another one to go on.
    """
    return {
        path: replace(one, writers=dict.fromkeys(one.writers, rank)) if _is_small_everywhere(arrays[path]) else one
        for path, one in layouts.items()
    }


def _is_small_everywhere(array: jax.Array) -> bool:
    return array.is_fully_replicated and array.nbytes <= _SMALL_BYTES


def files_of(layouts: Mapping[str, Layout], rank: int) -> Iterator[str]:
    """Yield the files of a checkpoint that a rank writes, as paths in its folder."""
    for path, layout in layouts.items():
        for cell, writer in layout.writers.items():
            if writer == rank:
                yield f"{array_directory(path)}/{file_name(cell)}"


def file_name(cell: tuple[int, ...]) -> str:
    """Return the name of the file at a place of an array's grid of files."""
    return ".".join(["c", *map(str, cell)])
