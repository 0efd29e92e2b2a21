"""A trainer's log that was cut because it had grown too large: in which files it is, and how it is read.

    host-N.log      its beginning, a line that says it was cut, and what was written since
    host-N.log.1    what stood between the two when it was last cut, after a header; earlier parts are left out

The trainer writes to the first file itself, and to no other (`launcher/system/log_bound.py` cuts it). The header is
there only once the first file is cut, so a reader that sees a new one finds both files as they belong together.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_HEADER = re.compile(
    rb"\[shardwise: part (\d+) of this log, after its first (\d+) bytes and (\d+) that are left out\]\n"
)
_HEADER_BYTES = 160  # more than any has


@dataclass(frozen=True, kw_only=True)
class OlderPart:
    """What was cut out last, in a file of its own.

    `number` counts the cuts from 1. `kept` are the bytes of the log's beginning that stay in it, `left_out` all those
    between them and this part. The part begins at the byte `start` of its file.
    """

    path: Path
    number: int
    kept: int
    left_out: int
    start: int

    @classmethod
    def of(cls, log: Path) -> Self | None:
        """Return the older part of a log; None if it was never cut."""
        path = older_path(log)
        try:
            with path.open("rb") as file:
                found = _HEADER.match(file.read(_HEADER_BYTES))
        except FileNotFoundError:
            return None
        if not found:
            return None
        number, kept, left_out = map(int, found.groups())
        return cls(path=path, number=number, kept=kept, left_out=left_out, start=found.end())

    @property
    def num_bytes(self) -> int:
        """Return how long the part is."""
        return self.path.stat().st_size - self.start

    def read(self, offset: int = 0) -> bytes:
        """Return the part from a byte on; from its first with the header, if something before it is left out."""
        return content_of(self.path, self.start + offset if offset or not self.left_out else 0)


def older_path(log: Path) -> Path:
    """Return the file of a log's older part."""
    return log.with_name(f"{log.name}.1")


def header(*, number: int, kept: int, left_out: int) -> bytes:
    """Return the line that the file of an older part begins with; see `OlderPart`."""
    line = f"[shardwise: part {number} of this log, after its first {kept} bytes and {left_out} that are left out]\n"
    return line.encode()


def content_of(path: Path, offset: int = 0, length: int = -1) -> bytes:
    """Return the bytes of a file from one on, at most `length` of them if it is not negative."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def whole_log(log: Path) -> bytes:
    """Return all that is left of a log, in the order in which it was written."""
    older = OlderPart.of(log)
    if older is None:
        return content_of(log)
    return content_of(log, length=older.kept) + older.read() + content_of(log, older.kept)


def tail_of(log: Path, num_bytes: int) -> tuple[bytes, int]:
    """Return at most this many of a log's last bytes, and how many it has in all; FileNotFoundError without a log."""
    size, older = log.stat().st_size, OlderPart.of(log)
    if older is None:
        return content_of(log, max(0, size - num_bytes)), size
    newest = content_of(log, max(older.kept, size - num_bytes))
    before = older.read(max(0, older.num_bytes - num_bytes)) if len(newest) < num_bytes else b""
    return (before + newest)[-num_bytes:], size + older.num_bytes
