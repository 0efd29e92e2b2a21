"""Find the files of this machine that a glob matches, as a shell with `globstar` does, through links to folders too.

fsspec's own does not enter such a link, and data would be fewer without a word; it takes hidden files along, which
editors and notebooks leave beside the text.
"""

import errno
import glob
import itertools
import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from stat import S_IFDIR, S_IFMT, S_IFREG

_ANY_DEPTH = "**"
_ESCAPED = re.compile(r"\[([*?[])\]")
_States = frozenset[tuple[str, ...]]
"""What may be left of a pattern's parts below a folder: several ways, where one of them is `**`."""


def local_files(pattern: str) -> Iterator[str]:
    """Yield the paths of the files that an absolute pattern matches, each file of a folder once, in one order.

    A name that begins with a dot is only matched by a part that does. Passed over is what is gone, a link that leads
    nowhere or around in a circle, and what only others may read, such as the `lost+found` of a volume.

    Raises:
        OSError: a folder cannot be listed.
        ValueError: a part has `**` and more.

    """
    names = [part for part in pattern.split("/") if part]
    parts = [part for part, before in zip(names, ["", *names], strict=False) if not part == before == _ANY_DEPTH]
    if any(_ANY_DEPTH in part and part != _ANY_DEPTH for part in parts):
        raise ValueError(f"{_ANY_DEPTH} can only be a whole part of a path")
    plain = [_plain(part) for part in itertools.takewhile(_is_plain, parts)]
    yield from _below("".join(f"/{part}" for part in plain), frozenset({tuple(parts[len(plain) :])}), set())


def _plain(part: str) -> str:
    """Return a part without what stands for a single letter of a glob itself, as `glob.escape` writes it."""
    return _ESCAPED.sub(r"\1", part)


def _is_plain(part: str) -> bool:
    return not glob.has_magic(_ESCAPED.sub("", part))


def _below(folder: str, states: _States, seen: set[tuple[int, int, _States]]) -> Iterator[str]:
    states |= {state[1:] for state in states if state[:1] == (_ANY_DEPTH,)}  # which is any number of folders: none
    status = _status(folder or "/")
    # Links may lead to a folder several times, and around.
    if status is None or (here := (status.st_dev, status.st_ino, states)) in seen:
        return
    seen.add(here)
    for name, kind in _listed(folder or "/"):
        left = frozenset(_rest(state) for state in states if state and _matches(name, state[0]))
        if kind == S_IFDIR and left - {()}:
            yield from _below(f"{folder}/{name}", left - {()}, seen)
        elif kind == S_IFREG and left & {(), (_ANY_DEPTH,)}:
            yield f"{folder}/{name}"


def _rest(state: tuple[str, ...]) -> tuple[str, ...]:
    return state if state[0] == _ANY_DEPTH else state[1:]


def _matches(name: str, part: str) -> bool:
    return (part[0] == "." or name[0] != ".") and fnmatchcase(name, part)


def _listed(folder: str) -> list[tuple[str, int]]:
    """Return the names in a folder, sorted, each with the kind of what it leads to: S_IFDIR, S_IFREG, or another."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry.name, _kind(entry)) for entry in entries)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _kind(entry: os.DirEntry[str]) -> int:
    if entry.is_dir(follow_symlinks=False):  # the listing itself tells: a look at each file takes long
        return S_IFDIR
    if entry.is_file(follow_symlinks=False):
        return S_IFREG
    status = _status(entry.path)
    return S_IFMT(status.st_mode) if status else 0


def _status(path: str) -> os.stat_result | None:
    """Return what a path leads to; None if that is nothing, or nothing that may be looked at."""
    try:
        return Path(path).stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM):
            return None
        raise
