"""A growing file of lines, read as it grows.

Called by the leader (metrics) and by the command (logs, events). A line is given out when it is whole.
"""

from pathlib import Path


class GrowingFile:
    """What is added to a file after its first `offset` bytes."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        """The file need not be there yet."""
        self._path, self._offset = path, offset
        self._rest = b""

    def lines(self) -> list[str]:
        """Every line that has become whole since the last call, without its end."""
        *whole, self._rest = self._read().split(b"\n")
        self._offset += sum(len(line) + 1 for line in whole)
        return [line.decode("utf-8", "replace") for line in whole]

    def rest(self) -> str:
        """What the file ended with, after its last line, at the last call of `lines`."""
        return self._rest.decode("utf-8", "replace")

    def _read(self) -> bytes:
        """All after the last whole line: a half one may still be taken back by the next writer."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                return file.read()
        except FileNotFoundError:
            return b""


def size_of(path: Path) -> int:
    """The bytes of a file; 0 where it is not there."""
    return path.stat().st_size if path.exists() else 0
