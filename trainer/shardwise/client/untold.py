"""Which lines of a pod's log have not been told yet, where it is asked for again and again."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime


class Untold:
    """The lines of one log, each told once.

    They are known by their times and not by their numbers: a node begins a new file when one is large, and gives out
    the newest file alone.
    """

    def __init__(self) -> None:
        self._last: datetime | None = None
        self._told = 0  # lines of that time
        self._said = ""

    @property
    def since(self) -> str | None:
        """The second of the last line that was told, before which nothing need be sent again; None before the first.

        The API server hands on whole seconds to a node.
        """
        return None if self._last is None else f"{self._last.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"

    def of(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield what follows the last line that was told; each line comes with its time before it, and goes without."""
        last, again = self._last, self._told
        for stamped in lines:
            stamp, _, line = stamped.partition(" ")
            try:
                at = datetime.fromisoformat(stamp)
            except ValueError:  # what the node says where it cannot read the log
                if stamped != self._said:
                    self._said = stamped
                    yield stamped
                continue
            if last and (at < last or (at == last and again)):
                again -= at == last
                continue
            last = None  # from here on all is new, whatever a clock does
            if self._last is None or at > self._last:
                self._last, self._told = at, 0
            self._told += at == self._last
            yield line
