"""Small files that another process may read at any moment, and that a kill must not leave half written."""

import os
from pathlib import Path


def replace_file(path: Path, text: str, *, durable: bool) -> None:
    """Replace a file by rename: a reader, or a crash of this process, sees the old text or the new one, never a part.

    If `durable`, it also survives a loss of power, and waits for the disk: not for what is written at every step.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    partial.replace(path)
