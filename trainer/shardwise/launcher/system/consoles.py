"""The consoles that show a run. A stream that can no longer be written, say on a full disk, does not end the run."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO, cast

from rich.console import Console


def consoles(*, width: int | None = None) -> tuple[Console, Console]:
    """Return consoles of standard output and standard error that go quiet where they cannot be written."""
    shown, errors = _Stream(sys.stdout, "standard output"), _Stream(sys.stderr, "standard error")
    shown.other, errors.other = errors, shown
    return (
        Console(file=cast("IO[str]", shown), width=width),
        Console(file=cast("IO[str]", errors), width=width, stderr=True),
    )


class _Stream(io.TextIOBase):
    """A stream of this process, given up at the first error; the other one then says so."""

    other: "_Stream"

    def __init__(self, stream: TextIO | None, name: str) -> None:
        """Take a stream; None is one that was closed before this process began."""
        self._stream = stream or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  as long as this process
        self._name = name

    def isatty(self) -> bool:
        """Return whether it is a terminal, where a line can be drawn."""
        return self._stream.isatty()

    def write(self, text: str, /) -> int:
        """Write text; nothing once it is given up."""
        with self._given_up_on_error():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is left in the buffer."""
        with self._given_up_on_error():
            self._stream.flush()

    @contextmanager
    def _given_up_on_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # From now on nothing fails: neither what Python writes at the exit, nor a message of the other stream.
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            self.other.write(
                f"{self._name} cannot be written ({error.strerror}); nothing more is shown there, and the run goes on\n"
            )
            self.other.flush()
