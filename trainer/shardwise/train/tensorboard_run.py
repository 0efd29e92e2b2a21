"""TensorBoard's event files of a run. The package tensorboardX is an extra.

Of it the messages and the checksum are taken, and not its writer: that one has a thread of its own, which a full disk
ends with a traceback, and with it all numbers from then on. Here numbers are in the file once `send` returns.
"""

import os
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardwise.train.background import Point

_PREFIX = "events.out.tfevents."


class TensorBoard:
    """Scalars in an event file of one start of a run. A step that is repeated after a restart appears once."""

    def __init__(self, folder: Path, after: int) -> None:
        """Choose the file, whose name orders it behind older ones: of those, steps > `after` are dropped."""
        number = max(int(time.time()), 1 + max(map(_number, folder.glob(f"{_PREFIX}*")), default=0))  # clocks jump
        self._file = folder / f"{_PREFIX}{number:010d}.{socket.gethostname()}.{os.getpid()}"
        self._after, self._size = after, 0

    def send(self, points: Sequence[Point]) -> None:
        """Append the numbers of some steps."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("ab") as file:
            kept = self._size if file.tell() >= self._size else 0  # somebody has removed the file
            file.truncate(kept)  # what a full disk has cut off comes again
            begun = b"" if kept else _head(self._after)
            content = begun + b"".join(_framed(_scalars(point)) for point in points)
            file.write(content)
        self._size = kept + len(content)

    def close(self, *, complete: bool) -> None:
        """Do nothing: all is written, and files have no state."""


def _number(file: Path) -> int:
    """Return the number by which a file is read before or after others: the seconds of its beginning."""
    number = file.name.removeprefix(_PREFIX).partition(".")[0]
    return int(number) if number.isdecimal() else 0


def _head(after: int) -> bytes:
    """Return the records that a file begins with: its version, and that later steps of older files do not count."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog  # noqa: PLC0415  an extra

    version = Event(wall_time=time.time(), file_version="brain.Event:2")
    start = Event(wall_time=time.time(), step=after + 1, session_log=SessionLog(status=SessionLog.START))
    return _framed(version) + _framed(start)


def _scalars(point: Point) -> Any:
    """Return the event of one point."""
    from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415  an extra
    from tensorboardX.proto.summary_pb2 import Summary  # noqa: PLC0415

    values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
    return Event(wall_time=point.at, step=point.step, summary=Summary(value=values))


def _framed(event: Any) -> bytes:
    """Return an event as a record of a file: its length and itself, each with a checksum behind it."""
    from tensorboardX.record_writer import masked_crc32c  # noqa: PLC0415  an extra

    content: bytes = event.SerializeToString()
    length = struct.pack("<Q", len(content))
    sums = [struct.pack("<I", masked_crc32c(part)) for part in (length, content)]
    return length + sums[0] + content + sums[1]
