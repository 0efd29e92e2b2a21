"""Keeps the log of a process that prints for weeks from filling the run directory's volume.

It is that of a trainer, of an agent that the command has started, or of Ray's driver. The process writes to the file
itself, with no process between: so what it wrote is there, whoever is killed. The file is therefore cut under it
(`protocol/bounded_log.py` says into what). That is safe because it is open for appending, for the process and all that
inherit it: the next write goes to the new end. Only what is written in the instant between the last copy and the cut is
lost.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from shardwise.launcher.system.lines import size_of
from shardwise.protocol.bounded_log import OlderPart, header, older_path

LOG_BYTES = 64 << 20
"""What a log may grow to: weeks of a trainer's own lines, and little beside a checkpoint."""
KEPT_BYTES = 1 << 20
"""Of its beginning: how the process started, which explains much of what follows."""

_LOOK_SECONDS = 1.0
_AGAIN_SECONDS = 60.0  # after a cut that failed: each takes room on a volume that may be full
_CHUNK_BYTES = 1 << 20
_ROUNDS = 8  # of copying what was written meanwhile; of a process that is faster than that, the rest is lost


@asynccontextmanager
async def bounded(log: Path) -> AsyncIterator[None]:
    """Keep the log within bounds while the block waits for its process; after it nobody cuts the log any more."""
    ended = asyncio.Event()
    bounding = asyncio.create_task(_bound(log, ended))
    try:
        yield
    finally:
        ended.set()
        await bounding


async def _bound(log: Path, ended: asyncio.Event) -> None:
    """Cut the log whenever it is too large, until its process has ended."""
    while not ended.is_set():
        wait = _LOOK_SECONDS
        try:
            if size_of(log) > LOG_BYTES:
                await asyncio.to_thread(cut, log)
        except OSError:  # no run ends for its log
            wait = _AGAIN_SECONDS
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await ended.wait()


def cut(log: Path) -> None:
    """Move all but the log's beginning to the file of its older part, in place of what is there.

    Raises:
        OSError: the older part cannot be written; the log is as it was.

    """
    before, older = OlderPart.of(log), older_path(log)
    number, left_out = (before.number + 1, before.left_out + before.num_bytes) if before else (1, 0)
    partial = older.with_name(f"{older.name}.partial")
    with log.open("r+b") as file, log.open("ab", buffering=0) as end:
        kept = before.kept if before else _beginning(file.read(KEPT_BYTES))
        file.seek(kept)
        try:
            with partial.open("wb", buffering=0) as copy:
                copy.write(header(number=number, kept=kept, left_out=left_out))
                is_whole = _copy(file, copy)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        file.truncate(kept)
        end.write((b"" if is_whole else b"\n") + _said(older))
    partial.replace(older)  # last: whoever sees the new number finds the log cut, and the line in it


def _beginning(content: bytes) -> int:
    """Return how many bytes are kept of a log that begins so: whole lines, if it has any."""
    return content.rfind(b"\n") + 1 or len(content)


def _copy(file: BinaryIO, copy: BinaryIO) -> bool:
    """Copy a file from where it is, and what is written meanwhile; return whether that ends with a whole line."""
    last = b""
    for _ in range(_ROUNDS):
        limit = os.fstat(file.fileno()).st_size
        while file.tell() < limit and (chunk := file.read(min(_CHUNK_BYTES, limit - file.tell()))):
            copy.write(chunk)
            last = chunk
        if os.fstat(file.fileno()).st_size == limit:
            break
    return last[-1:] in (b"", b"\n")


def _said(older: Path) -> bytes:
    return (
        f"[shardwise: the log was cut here at {LOG_BYTES >> 20} MiB; the last part before this line "
        f"went to {older.name}, earlier ones are left out]\n"
    ).encode()
