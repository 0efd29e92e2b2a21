"""Files that only who has a key can have written, each in its own place: each begins with a seal of both.

A seal is an HMAC-SHA256 of the place, which is the names of the folder and of the file, and of what follows. A file
that was damaged, that others wrote, or that was kept under another name is removed, and read as if there were none.
"""

import hmac
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_SEAL = "sha256"
_SEAL_BYTES = 32
T = TypeVar("T")


@dataclass(frozen=True)
class SealedFiles:
    """Reads and writes files with seals of one key. Any thread may do so.

    Neither fails: what cannot be kept or read only costs the time to make it again, and a word in the process's log.
    """

    key: bytes

    def read(self, path: Path, made_of: Callable[[bytes], T]) -> T | None:
        """Return what is made of the content of a file, or None. One that cannot be used is removed."""
        try:
            sealed = path.read_bytes()
        except OSError:  # there is none, or its volume fails
            return None
        seal, content = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        try:
            if not hmac.compare_digest(seal, self._seal(path, content)):
                raise ValueError("it is damaged, or not what was kept there")  # noqa: TRY301  handled as any other failure
            made = made_of(content)
        except Exception as error:  # noqa: BLE001  loading a program may raise anything; it is compiled again
            print(f"{path}: cannot be used ({error}); compiling again", file=sys.stderr)  # noqa: T201  the process's log
            path.unlink(missing_ok=True)
            return None
        return made

    def write(self, path: Path, content: bytes) -> None:
        """Write a whole file or none; who reads meanwhile has what was there."""
        partial = path.with_suffix(f".{secrets.token_hex(8)}")  # process ids would collide: pods count them alike
        try:
            partial.write_bytes(self._seal(path, content) + content)
            partial.replace(path)
        except OSError as error:  # a full disk; the run has its program, and only the next start takes longer
            print(f"{path}: cannot be kept ({error})", file=sys.stderr)  # noqa: T201  the process's log
            partial.unlink(missing_ok=True)

    def _seal(self, path: Path, content: bytes) -> bytes:
        place = f"{path.parent.name}/{path.name}\0".encode()
        return hmac.digest(self.key, place + content, _SEAL)


def key_of(token: bytes, purpose: str) -> bytes:
    """Return the key of a purpose, which tells nothing of the token."""
    return hmac.digest(token, purpose.encode(), _SEAL)


def used(path: Path) -> None:
    """Note that a file or folder is used now: those that were used last stay."""
    with suppress(OSError):  # removed meanwhile, or a volume that fails
        os.utime(path)


def retain_folders(within: Path, keep: int, but: str) -> None:
    """Remove all but so many of the folders, the least recently used first. `but` names one that is none of them."""
    for _, folder in _newest_first(path for path in within.iterdir() if path.name != but)[keep:]:
        shutil.rmtree(folder, ignore_errors=True)


def retain_bytes(within: Path, most_bytes: int) -> None:
    """Remove files until the others have no more than so many bytes, the least recently used first, never the last."""
    total = 0
    for index, (status, path) in enumerate(_newest_first(within.iterdir())):
        total += status.st_size
        if index and total > most_bytes:
            path.unlink(missing_ok=True)


def _newest_first(paths: Iterable[Path]) -> list[tuple[os.stat_result, Path]]:
    """Return those that are still there; other processes may be removing them."""
    found = []
    for path in paths:
        with suppress(FileNotFoundError):
            found.append((path.stat(), path))
    return sorted(found, key=lambda each: (-each[0].st_mtime, each[1]))
