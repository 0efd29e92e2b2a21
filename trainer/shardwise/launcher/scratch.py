"""The temporary folder of a command, removed with the run: sockets, progress, tokens, Ray's files.

In a pod the operator mounts one.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardwise.protocol.leader_record import LeaderRecord

_PREFIX = "sw-"
_OWNER = "run-directory"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder with a short path, for unix sockets lie in it; remove it at the end of the block."""
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def note_owner(directory: Path, scratch: Path) -> None:
    """Write down in a scratch folder which run directory it serves, for `remove_scratch_of`."""
    (scratch / _OWNER).write_text(f"{directory}\n", encoding="utf-8")


def remove_scratch_of(directory: Path, record: LeaderRecord | None) -> None:
    """Remove the folder that a killed command has left; in a copied run directory the record names another run's."""
    if record and (scratch := Path(record.scratch)).name.startswith(_PREFIX):
        owner = scratch / _OWNER
        if owner.is_file() and owner.read_text(encoding="utf-8") == f"{directory}\n":
            shutil.rmtree(scratch, ignore_errors=True)
