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


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder with a short path, for unix sockets lie in it; remove it at the end of the block."""
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def remove_scratch_of(record: LeaderRecord | None) -> None:
    """Remove the folder that a killed command has left."""
    if record and Path(record.scratch).name.startswith(_PREFIX):
        shutil.rmtree(record.scratch, ignore_errors=True)
