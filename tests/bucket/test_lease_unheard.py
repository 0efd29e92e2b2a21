"""The lease of a folder of checkpoints, where the store loses answers or gives none."""

import time
from pathlib import Path
from typing import Any

import pytest
import tensorstore as ts
from tests.bucket.conftest import of, silently

from shardwise.bucket import lease
from shardwise.protocol import storage
from shardwise.protocol.errors import RunDirectoryError, StorageError


class Unheard:
    """A store that writes, and whose first `times` answers are lost: TensorStore sends such a write again by itself."""

    def __init__(self, folder: ts.KvStore, times: int) -> None:
        self._folder, self.times = folder, times
        self.read = folder.read

    def write(
        self, name: str, content: bytes, *, if_equal: bytes
    ) -> ts.Future[ts.KvStore.TimestampedStorageGeneration]:
        """Write; what is sent again meets what it has written itself."""
        written = self._folder.write(name, content, if_equal=if_equal)
        if self.times and written.result().generation:
            self.times -= 1
            return self._folder.write(name, content, if_equal=if_equal)
        return written


def test_a_write_whose_answer_was_lost(root: str) -> None:
    """Nobody has taken over from a holder that meets its own writing: as it begins, renews its lease, and ends."""
    first, told = of(root, "first"), list[str]()
    first._folder = unheard = Unheard(first._folder, 2)  # type: ignore[assignment]
    with first.held(silently):
        assert unheard.times == 0
        unheard.times = 1
        first.renew()
        assert unheard.times == 0
        unheard.times = 1
    assert unheard.times == 0
    with of(root, "second").held(told.append) as second:
        unheard.times = 1
        with pytest.raises(RunDirectoryError, match="the run 'job' in /runs/second has taken over"):
            first.renew()
        second.renew()

    assert told == [], "the first gave the folder back"


def test_a_store_that_refuses_what_follows_its_own_content(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the lease names its holder nobody has taken over: a restart may help, as for any storage that fails."""
    monkeypatch.setattr(storage, "WAITS_SECONDS", ())
    first = of(root, "first")
    with first.held(silently):
        first._folder = Unheard(first._folder, 100)  # type: ignore[assignment]
        with pytest.raises(OSError, match="takes no write") as refused:
            first.renew()

    assert storage.may_pass(refused.value)


class Dead:
    """A store that takes requests and answers none."""

    def read(self, _name: str) -> ts.Future[ts.KvStore.ReadResult]:
        """Begin to read."""
        return self._never()

    def write(self, _name: str, _content: bytes, **_: bytes) -> ts.Future[ts.KvStore.TimestampedStorageGeneration]:
        """Begin to write."""
        return self._never()

    def _never(self) -> ts.Future[Any]:
        promise, future = ts.Promise[Any].new()
        self.kept = promise  # else the request would end
        return future


def test_a_store_that_died_does_not_hold_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not it is just being renewed: the holder ends, and leaves the lease to get stale."""
    monkeypatch.setattr(lease, "END_SECONDS", 0.2)
    for renew_seconds in (0.01, 60.0):
        monkeypatch.setattr(lease, "RENEW_SECONDS", renew_seconds)
        began = time.monotonic()
        with of(str(tmp_path), "first").held(silently) as first:
            first._folder = Dead()  # type: ignore[assignment]
            time.sleep(0.1)

        assert time.monotonic() - began < 10


def test_a_store_that_never_answers_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import, or a start, ends with words that a restart may help against."""
    monkeypatch.setattr(lease, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(storage, "WAITS_SECONDS", (0.01,))
    waiting = of(str(tmp_path), "first")
    waiting._folder = Dead()  # type: ignore[assignment]

    with pytest.raises(StorageError, match=r"has not answered within 0.1 s"), waiting.held(silently):
        pass
