"""Follow a file of lines while another process appends to it. A line is returned once it is complete."""

import codecs
import os
from contextlib import suppress
from pathlib import Path

from shardwise.protocol.bounded_log import OlderPart, content_of

_PIECE_BYTES = 1 << 20
_MOST_REST_BYTES = 1 << 16


class GrowingFile:
    """What is appended to a file after its first `offset` bytes. The file need not exist yet.

    One call reads at most `most_bytes`, if that is not negative, but always a whole line if there is one. `offset` is
    the byte after the last line that was returned, and `behind` whether the last call has left something unread. Of a
    file that a person has made shorter, what is appended from then on is read.
    """

    def __init__(self, path: Path, offset: int = 0, *, most_bytes: int = -1) -> None:
        self._path, self.offset, self._most_bytes = path, offset, most_bytes
        self._rest = b""
        self.behind = False

    def lines(self) -> list[str]:
        """Return every line that was completed since the last call, without its newline."""
        # Read again from the end of the last complete line: a trainer that restarts cuts off the half line of the one
        # that was killed (`train/metrics.py`), so bytes after that point must not be kept from one call to the next.
        content, end = self._read()
        *whole, self._rest = content.split(b"\n")
        self.offset = end - len(self._rest)
        return [line.decode("utf-8", "replace") for line in whole]

    def rest(self) -> str:
        """Return what followed the last complete line when `lines` was last called."""
        return self._rest.decode("utf-8", "replace")

    def _read(self) -> tuple[bytes, int]:
        """Return what follows, and the byte of the file at which it ends."""
        most, content = self._most_bytes, b""
        with suppress(FileNotFoundError):
            content = content_of(self._path, self.offset, most)
            while 0 <= most <= len(content) and b"\n" not in content:
                most *= 2
                content = content_of(self._path, self.offset, most)
            if not content and _opened_size(self._path) < self.offset:
                self._found_shorter()
        self.behind = 0 <= most <= len(content)
        return content, self.offset + len(content)

    def _found_shorter(self) -> None:
        """Go on after what is left of the file."""
        self.offset = end_of_lines(self._path)


class GrowingLog(GrowingFile):
    """A trainer's log, also while it is cut (`protocol/bounded_log.py`).

    Of a log that is cut more than once between two calls, a line says where some are left out. A long line that does
    not end, such as a bar of progress that writes over itself, is returned in pieces.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._cuts = 0

    def lines(self) -> list[str]:
        """Return every line that was completed since the last call, and what there is of one that is long by now."""
        whole = super().lines()
        if len(self._rest) > _MOST_REST_BYTES:
            piece, num_bytes = codecs.utf_8_decode(self._rest, "replace", False)  # not the first bytes of a letter
            whole.append(piece)
            self.offset += num_bytes
            self._rest = self._rest[num_bytes:]
        return whole

    def _read(self) -> tuple[bytes, int]:
        older = OlderPart.of(self._path)
        if older is None or older.number == self._cuts:
            return super()._read()
        newest = content_of(self._path, older.kept)
        if self.offset <= older.kept:
            before = content_of(self._path, self.offset, older.kept - self.offset) + older.read()
        else:
            before = older.read(self.offset - older.kept if older.number == self._cuts + 1 else 0)
        self._cuts = older.number
        return before + newest, older.kept + len(newest)

    def _found_shorter(self) -> None:
        """Keep the place: a log is shorter a moment before its older part tells of the cut."""


def _opened_size(path: Path) -> int:
    """Return the size of a file as of now: what is known of one that is not open may be old on a network volume."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_size


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


def end_of_lines(path: Path) -> int:
    """Return the byte after a file's last whole line; 0 if it has none. Of a long file only the end is read."""
    end = size_of(path)
    while end > 0:
        start = max(0, end - _PIECE_BYTES)
        found = content_of(path, start, end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
