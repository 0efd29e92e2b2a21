"""Small files that another process may read at any moment, and that a kill must not leave half written."""

import os
from pathlib import Path


def replace_file(path: Path, text: str, *, durable: bool, mode: int | None = None) -> None:
    """Replace a file by rename: a reader, or a crash of this process, sees the old text or the new one, never a part.

    If `durable`, it also survives a loss of power, and waits for the disk: not for what is written at every step.
    With `mode` it has these permissions from its first byte on, and else those of any new file.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("w", encoding="utf-8") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    partial.replace(path)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: what is in a file may survive a loss of power without the file's name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
