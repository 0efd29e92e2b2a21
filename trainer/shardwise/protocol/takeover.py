"""Who may write to a run directory: one live run, and of its attempts only the newest.

    DIR/.lock          locked (flock) while a run lives; names its process
    DIR/.attempt       how many times the run's processes have been started; locked shared while a commit is made

A new attempt is counted under the exclusive lock, so it waits for a commit that has passed its check, and every
later commit of an older attempt is refused.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardwise.protocol.contract import LOCK, LOGS
from shardwise.protocol.errors import RunDirectoryError, StorageError
from shardwise.protocol.file_lock import lock_within
from shardwise.protocol.storage import in_words, may_pass

ATTEMPT_FILE = ".attempt"
_EARLIER_FILE, _EARLIER_KEY = ".incarnation", "incarnation"  # what both were called at first
_LENGTH = 64  # bytes, more than any content
COMMIT_WITHIN_SECONDS = 180.0
"""A commit takes one small write; NFS keeps the lock of a machine that died for 90 s."""
_TELL_SECONDS = 2.0
_LOOKS_SECONDS = 0.5
_LOOK_AGAIN_SECONDS = 0.005


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Make the run directory if needed and hold it until the block ends.

    Raises:
        RunDirectoryError: another live run holds it, or it cannot be written.
        StorageError: it cannot be written now.

    """
    try:
        (path / LOGS).mkdir(parents=True, exist_ok=True)
        handle = _open_or_make(path / LOCK)
    except OSError as error:
        words = (
            f"{path}: cannot be used as a run directory ({error.strerror}); "
            "give a directory that can be written with --dir"
        )
        raise in_words(error, words, RunDirectoryError) from error
    try:
        holder = _read(handle)
        if not _alone(handle):
            raise RunDirectoryError(
                f"{path}: a live run (process {holder.get('pid', 'unknown')}) is using this directory; "
                "wait for it, stop it with `shardwise stop`, or give another --dir"
            )
        _write(handle, {"pid": os.getpid()})
        yield
    finally:
        os.close(handle)


def _alone(handle: int) -> bool:
    """Take the lock alone; return False if a live run has it. Who only looks shares it for a moment: try again then."""
    until = time.monotonic() + _LOOKS_SECONDS
    while not _locked(handle, fcntl.LOCK_EX):
        if not _locked(handle, fcntl.LOCK_SH):
            return False
        fcntl.flock(handle, fcntl.LOCK_UN)  # or two that begin now would keep each other out
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_AGAIN_SECONDS)
    return True


def _locked(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def next_attempt(path: Path, tell: Callable[[str], None] = lambda _: None) -> int:
    """Count one more start of the run's processes, from 0; from here on no older one can commit.

    Args:
        path: the run directory.
        tell: gets a line for a person if an older start's commit is waited for, at most `COMMIT_WITHIN_SECONDS` long.

    Raises:
        StorageError: that commit has not ended by then: its process hangs in the storage; or that refuses now.

    """
    try:
        return _counted(path, tell)
    except OSError as error:
        if not may_pass(error):
            raise
        raise StorageError(f"{path / ATTEMPT_FILE}: a start cannot be counted ({error.strerror})") from error


def _counted(path: Path, tell: Callable[[str], None]) -> int:
    handle = _open_or_make(path / ATTEMPT_FILE)
    try:
        _wait_for_commit(handle, path, tell)
        number: int = max(_read(handle).get("attempt", -1), _counted_earlier(path)) + 1
        _write(handle, {"attempt": number})
        # Without its file no process of a release that counted there can commit any more.
        (path / _EARLIER_FILE).unlink(missing_ok=True)
    finally:
        os.close(handle)
    return number


def _wait_for_commit(handle: int, path: Path, tell: Callable[[str], None]) -> None:
    """Lock the file of the attempts alone."""
    file = path / ATTEMPT_FILE
    waiting = f"waiting for a process of an earlier start, which is at its commit and holds {file}"
    if not lock_within(handle, seconds=COMMIT_WITHIN_SECONDS, tell_after=_TELL_SECONDS, tell=lambda: tell(waiting)):
        raise StorageError(
            f"{file}: a process of an earlier start has held its lock for {COMMIT_WITHIN_SECONDS:.0f} s: its "
            "commit hangs in the storage, and no start may count before it has ended"
        )


def _counted_earlier(path: Path) -> int:
    """Return the last start that an earlier release counted, in its own file; -1 if there was none."""
    try:
        text = (path / _EARLIER_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return -1
    number: int = json.loads(text or "{}").get(_EARLIER_KEY, -1)
    return number


@contextmanager
def hold_newest_attempt(path: Path, attempt: int) -> Iterator[None]:
    """Hold the newest attempt while the block runs: a newer one is not counted before the block has ended.

    Raises:
        RunDirectoryError: there is a newer one already; the block does not run.

    """
    handle = os.open(path / ATTEMPT_FILE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        newest = _read(handle).get("attempt")
        if newest != attempt:
            raise RunDirectoryError(
                f"{path}: a newer start of this run ({newest}) has taken over from this one ({attempt}); "
                "nothing was committed"
            )
        yield
    finally:
        os.close(handle)


def _open_or_make(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _read(handle: int) -> dict[str, Any]:
    """Read the file; empty for a new one, and for one whose writer was killed while writing."""
    text = os.pread(handle, _LENGTH, 0)
    try:
        read = json.loads(text)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _write(handle: int, content: Mapping[str, Any]) -> None:
    """Replace the content in one write of a fixed length: there is no moment at which a kill leaves the file empty."""
    os.pwrite(handle, json.dumps(content).encode().ljust(_LENGTH), 0)
