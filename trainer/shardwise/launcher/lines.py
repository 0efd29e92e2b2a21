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
        *whole, self._rest = (self._rest + self._read()).split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]

    def rest(self) -> str:
        """What the file ends with after its last line."""
        return self._rest.decode("utf-8", "replace")

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:  # its writer removed a line that a kill had cut short
                    self._offset, self._rest = file.tell(), b""
                file.seek(self._offset)
                added = file.read()
        except FileNotFoundError:
            return b""
        self._offset += len(added)
        return added


def size_of(path: Path) -> int:
    """The bytes of a file; 0 where it is not there."""
    return path.stat().st_size if path.exists() else 0
