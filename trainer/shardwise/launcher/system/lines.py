"""Follow a file of lines while another process appends to it. A line is returned once it is complete."""

from pathlib import Path


class GrowingFile:
    """What is appended to a file after its first `offset` bytes. The file need not exist yet."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path, self._offset = path, offset
        self._rest = b""

    def lines(self) -> list[str]:
        """Return every line that was completed since the last call, without its newline."""
        # Read again from the end of the last complete line: a trainer that restarts cuts off the half line of the one
        # that was killed (`train/metrics.py`), so bytes after that point must not be kept from one call to the next.
        *whole, self._rest = self._read().split(b"\n")
        self._offset += sum(len(line) + 1 for line in whole)
        return [line.decode("utf-8", "replace") for line in whole]

    def rest(self) -> str:
        """Return what followed the last complete line when `lines` was last called."""
        return self._rest.decode("utf-8", "replace")

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                return file.read()
        except FileNotFoundError:
            return b""


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0
