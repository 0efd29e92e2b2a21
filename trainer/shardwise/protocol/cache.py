"""The folders of a user for what can be made anew: token caches, compiled programs, copies of runs in buckets.

They may be deleted at any time. A trainer cannot work without that of its programs, so the command looks at it first.
"""

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from shardwise.protocol.contract import CACHE_VARIABLE, PROGRAMS, PROGRAMS_VARIABLE
from shardwise.protocol.errors import UsageError

JAX_CACHE_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
_DEFAULT = "~/.cache/shardwise"


def cache_directory() -> Path:
    """Return the folder for all of it.

    Raises:
        UsageError: the variable names none, and this user has no home.

    """
    try:
        return Path(os.environ.get(CACHE_VARIABLE) or _DEFAULT).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"no folder for the cache: this user has no home directory (HOME is not set). Set {CACHE_VARIABLE} to a "
            "folder on a local disk"
        ) from error


def executables_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for what a process with these variables compiles, in which JAX's own cache is too."""
    return Path(environment.get(JAX_CACHE_VARIABLE) or cache_directory() / "executables")


def private_programs() -> Path:
    """Make the folder of programs of this user, close it to all other users, and return it."""
    folder = executables_directory() / PROGRAMS
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)  # raises if another user owns it
    return folder


def refuse_unusable_cache(*, trainer: bool) -> None:
    """Refuse a cache that a run cannot use: an own program must only know where, a trainer keeps its programs there.

    Raises:
        UsageError: its folder is not known, cannot be made, belongs to another user, or cannot be written to.

    """
    executables_directory()
    if not trainer or PROGRAMS_VARIABLE in os.environ:
        return
    try:
        folder = private_programs()
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        variable = JAX_CACHE_VARIABLE if os.environ.get(JAX_CACHE_VARIABLE) else CACHE_VARIABLE
        raise UsageError(
            f"cannot use the cache of compiled programs {str(executables_directory() / PROGRAMS)!r}: {error.strerror}. "
            f"Expected a folder of this user's on a local disk: set {variable} to another one"
        ) from error
