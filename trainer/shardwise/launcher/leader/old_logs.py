"""What DIR/logs need not keep, so that a run of months does not fill its volume.

That are the logs and stacks of attempts that are long over, and of one that stalls again and again most of its stacks.
"""

import re
import shutil
from contextlib import suppress
from pathlib import Path

from shardwise.protocol.contract import LOGS

ATTEMPTS_KEPT = 100
STACKS_KEPT = 8
"""Of an attempt, beside its first: of a thousand ranks they are tens of megabytes."""
_OF_ATTEMPT = re.compile(r"(?:attempt|stacks)-(\d+)(?:-.*\.txt)?")  # a folder of logs, or a file of stacks


def in_bucket(newest: int) -> list[str]:
    """Return the name prefixes of the logs to delete from the bucket next."""
    number = newest - ATTEMPTS_KEPT
    return [f"{LOGS}/attempt-{number}/", f"{LOGS}/stacks-{number}-"] if number >= 0 else []


def remove(directory: Path, newest: int) -> None:
    """Remove the logs and stacks of all but the newest attempts; what cannot be removed is left to a later one."""
    with suppress(OSError):  # no run ends for its old logs
        for path in (directory / LOGS).iterdir():
            match = _OF_ATTEMPT.fullmatch(path.name)
            if match and int(match[1]) <= newest - ATTEMPTS_KEPT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_stacks(directory: Path, attempt: int) -> list[str]:
    """Remove stacks of an attempt that is about to write more; return the names in the bucket of what was removed."""
    removed = list[str]()
    with suppress(OSError):  # as above
        for path in sorted((directory / LOGS).glob(f"stacks-{attempt}-*.txt"))[1 : 1 - STACKS_KEPT]:
            path.unlink()
            removed.append(f"{LOGS}/{path.name}")
    return removed
