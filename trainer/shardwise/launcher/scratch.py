"""The folder of a command for what goes away with the run: sockets, progress, tokens, Ray's files.

Called by `local.py`. In a pod the operator mounts one.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardwise.launcher.record import GangRecord

_PREFIX = "sw-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder whose path is short, for unix sockets lie in it; removed at the end of the block."""
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def remove_scratch_of(record: GangRecord | None) -> None:
    """Remove what a killed command could not."""
    if record and Path(record.scratch).name.startswith(_PREFIX):
        shutil.rmtree(record.scratch, ignore_errors=True)
