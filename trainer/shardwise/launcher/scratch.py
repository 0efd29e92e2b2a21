"""The temporary folder of a command, removed with the run: sockets, progress, tokens, Ray's files.

In a pod the operator mounts one.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardwise.protocol.errors import UsageError
from shardwise.protocol.leader_record import LeaderRecord

_PREFIX = "sw-"
_OWNER = "run-directory"
_SHORT = "/tmp"  # noqa: S108  a folder in it has a name that nobody can guess, and is its owner's alone
_SOCKET_BYTES = 107  # of a unix socket's path: what the kernel takes


@contextmanager
def scratch_folder(longest: str) -> Iterator[Path]:
    """Make a folder with a short path, for unix sockets lie in it; remove it at the end of the block.

    It is in /tmp where the temporary folder's path leaves no room for them, and only its owner may look into it.

    Args:
        longest: the longest path of a socket below it.

    Raises:
        UsageError: there is no room for that, and none can be made in /tmp.

    """
    path = _made(longest)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _made(longest: str) -> Path:
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    over = len(os.fsencode(path / longest)) - _SOCKET_BYTES
    if over <= 0:
        return path
    path.rmdir()
    try:
        return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_SHORT))
    except OSError as error:
        size = len(os.fsencode(path.parent))
        raise UsageError(
            f"the temporary folder {path.parent} has a path of {size} bytes, expected at most {size - over}, for the "
            f"paths of unix sockets are bounded, and nothing can be made in {_SHORT} ({error.strerror}); set TMPDIR to "
            "a shorter one"
        ) from error


def note_owner(directory: Path, scratch: Path) -> None:
    """Write down in a scratch folder which run directory it serves, for `remove_scratch_of`."""
    (scratch / _OWNER).write_text(f"{directory}\n", encoding="utf-8")


def remove_scratch_of(directory: Path, record: LeaderRecord | None) -> None:
    """Remove the folder that a killed command has left; in a copied run directory the record names another run's."""
    if record and (scratch := Path(record.scratch)).name.startswith(_PREFIX):
        owner = scratch / _OWNER
        if owner.is_file() and owner.read_text(encoding="utf-8") == f"{directory}\n":
            shutil.rmtree(scratch, ignore_errors=True)
