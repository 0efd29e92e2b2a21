"""The run directory of a job without a volume that all hosts share: a folder of each host, and its copy in a bucket.

A host works in a folder on its own disk, as everywhere else. What others have to see of it is copied to the bucket.

    host 0     the whole run directory. Its successor, on another disk, begins with `KEPT`, which it takes from there.
    the rest   the logs and traces of their own trainers. They look up there who leads, and how the run has ended.

Of what is `KEPT`, each write says which content it replaces. So of two that both take themselves for host 0, only the
later one writes: the other learns it from its next write, and ends. Where the earlier one writes while the later one
begins, the later one begins again with that. What a decision rests on is copied before anything acts on it
(`LeaderState.keep`); the rest follows within seconds, and large files less often the larger they are.
"""

import asyncio
import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from shardwise.bucket.folder import Found, description, open_folder, remove_below
from shardwise.launcher.agent.copied_files import names_in
from shardwise.protocol.contract import (
    EVENTS,
    FORKS,
    IDENTITY,
    JOB_FILE,
    LEADER_ADDRESS,
    LEADER_RECORD,
    LEFT_OUT,
    LOGS,
    METRICS,
    PEAK,
    RUN_ID,
    SUMMARY,
)
from shardwise.protocol.errors import RunDirectoryError, StorageError, TakenOverError
from shardwise.protocol.storage import first_line, in_words
from shardwise.protocol.takeover import ATTEMPT_FILE

LEADER = (f"{LOGS}/{LEADER_ADDRESS}", f"{LOGS}/{LEADER_RECORD}")
KEPT = (
    *(f"{LOGS}/{name}" for name in (LEADER_ADDRESS, EVENTS, FORKS, IDENTITY, LEFT_OUT, PEAK)),
    *(ATTEMPT_FILE, JOB_FILE, METRICS, RUN_ID, SUMMARY),
    # Last: an attempt that a host 0 has counted, but whose record is refused, gets no orders from it.
    f"{LOGS}/{LEADER_RECORD}",
)
COPY_SECONDS = 15.0
_LOOKS = 5  # in that time
_BYTES_PER_SECOND = 1 << 20
_TAIL_BYTES = 1 << 20
_MOST_REFUSED = 3  # in one go: each is tried for a while, and a bucket that is away refuses all

_Result = TypeVar("_Result")
_Stamp = tuple[int, int, int]


class OutrunError(Exception):
    """The previous host 0 wrote after this one had read its files: read them again."""


class RunCopy:
    """The copy of one host's folder. `is_newest` tells whether no other host 0 has come after this one.

    Args:
        directory: the folder.
        url: where the run directory lies in a bucket.
        host: whose folder it is.

    """

    def __init__(self, directory: Path, url: str, host: int) -> None:
        """Copy nothing yet; CheckpointError for a URL of another kind."""
        self.directory, self.url, self.host = directory, url, host
        self._folder = open_folder(description(url))
        self._lock = threading.Lock()
        self._generations: dict[str, bytes] = {}
        self._tried: dict[str, set[bytes]] = {}  # digests of what was sent and may have been written
        self._copied: dict[str, _Stamp] = {}
        self._due: dict[str, float] = {}
        self._wanted = asyncio.Event()
        self._leads = False
        self.is_newest: Callable[[], bool] = lambda: False  # until its lease is held

    def take_kept(self) -> None:
        """Take all that a successor of host 0 needs; raise as `take`."""
        self.take(*KEPT)

    def take(self, *names: str) -> None:
        """Replace these files of the folder by what the bucket has of them; leave alone what it has not.

        Raises:
            StorageError, RunDirectoryError: the bucket cannot be read.

        """
        with self._lock:
            reads = [self._folder.read(name) for name in names]  # all at once
            for name, found in zip(names, self._asked("read", lambda: [each.result() for each in reads]), strict=True):
                self._generations[name] = found.stamp.generation
                if found.state == "value":
                    self._place(name, bytes(found.value))

    def take_leader(self) -> None:
        """Take what says who leads, and how the run has ended; raise as `take`."""
        self.take(*LEADER)

    def keep(self, *, must: bool) -> None:
        """Copy what has changed of `KEPT`.

        Args:
            must: raise if the bucket does not take it now; else it is left to the next time.

        Raises:
            TakenOverError: another process has written a file that only host 0 writes.
            OutrunError: that was the host 0 before, and nothing was kept by this one yet.
            StorageError, RunDirectoryError: the bucket cannot be written.

        """
        with self._lock, nullcontext() if must else _left_to_the_next_time():
            for name in KEPT:
                self._copy(name)
            self._leads |= must

    async def run(self) -> None:
        """Copy what is due from time to time, until cancelled; raise as `keep`, but for what may pass."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(COPY_SECONDS / _LOOKS):
                    await self._wanted.wait()
            self._wanted.clear()
            await asyncio.to_thread(self._copy_all, due=True)

    def soon(self) -> None:
        """Have `run` copy `KEPT` now; from its loop."""
        for name in KEPT:
            self._due.pop(name, None)
        self._wanted.set()

    def finish(self) -> None:
        """Copy the rest, and take what a termination record is made of, of the metrics only their end."""
        self._copy_all(due=False)
        if self.host != 0:
            self.take(f"{LOGS}/{LEADER_RECORD}", SUMMARY)
            with self._lock:
                self._place(METRICS, self._asked("read", self._end_of_metrics))

    def remove_below(self, prefixes: Iterable[str]) -> None:
        """Remove from the bucket what begins with these; what cannot be removed stays, since no run ends for it."""
        with self._lock, suppress(StorageError, RunDirectoryError):
            for prefix in prefixes:
                self._asked("written", partial(remove_below, self._folder, prefix))

    def _copy_all(self, *, due: bool) -> None:
        refused: list[str] = []
        with self._lock:
            for name in self._names():
                away = len(refused) == _MOST_REFUSED or (name in KEPT and refused)  # what is kept goes in its order
                if not away and (not due or time.monotonic() >= self._due.get(name, 0.0)):
                    refused.append(name)
                    with _left_to_the_next_time():
                        self._copy(name)
                        refused.pop()

    def _names(self) -> Iterator[str]:
        """Yield every file that this host copies."""
        if self.host == 0:
            yield from KEPT
        yield from (name for name in names_in(self.directory, self.url) if name not in KEPT)

    def _copy(self, name: str) -> None:
        path = self.directory / name
        try:
            if self._copied.get(name) == (stamp := _stamp(path)):
                return
            content = path.read_bytes()
        except FileNotFoundError:
            return
        self._due[name] = time.monotonic() + COPY_SECONDS + len(content) / _BYTES_PER_SECOND
        if name in KEPT:
            self._asked("written", lambda: self._write_kept(name, content))
        else:
            self._asked("written", self._folder.write(name, content).result)
        self._copied[name] = stamp

    def _write_kept(self, name: str, content: bytes) -> None:
        """Write a file over the content that was known, or over what this host has written without hearing of it."""
        tried = self._tried.setdefault(name, set())
        while True:
            tried.add(hashlib.sha256(content).digest())
            written = self._folder.write(name, content, if_equal=self._generations.get(name)).result()
            if written.generation:
                break
            there = self._read(name)
            if hashlib.sha256(there.value).digest() not in tried:
                self._contend()
            self._generations[name] = there.stamp.generation
        self._generations[name] = written.generation
        tried.clear()

    def _contend(self) -> None:
        """Raise if another host 0 wrote the file and it must not be overwritten."""
        if not self.is_newest():
            raise TakenOverError(f"{self.url}: another host 0 has taken over this run; nothing more is written there")
        if not self._leads:
            raise OutrunError(self.url)

    def _read(self, name: str) -> Found:
        return self._folder.read(name).result()

    def _end_of_metrics(self) -> bytes:
        """Return the last whole lines."""
        try:
            found = self._folder.read(METRICS, byte_range=slice(-_TAIL_BYTES, None)).result()
        except ValueError as error:
            if "OUT_OF_RANGE" not in str(error):
                raise
            return bytes(self._read(METRICS).value)  # it is shorter
        return bytes(found.value).partition(b"\n")[2]

    def _place(self, name: str, content: bytes) -> None:
        path = self.directory / name
        partial = path.with_name(f"{path.name}.taken.partial")
        partial.write_bytes(content)
        partial.replace(path)
        self._copied[name] = _stamp(path)

    def _asked(self, how: str, act: Callable[[], _Result]) -> _Result:
        try:
            return act()
        except (ValueError, OSError) as error:
            raise in_words(error, f"{self.url} cannot be {how}: {first_line(error)}", RunDirectoryError) from error


@contextmanager
def _left_to_the_next_time() -> Iterator[None]:
    try:
        yield
    except TakenOverError:
        raise
    except StorageError as error:
        sys.stderr.write(f"{error}\n")


def _stamp(path: Path) -> _Stamp:
    found = path.stat()
    return found.st_mtime_ns, found.st_ino, found.st_size
