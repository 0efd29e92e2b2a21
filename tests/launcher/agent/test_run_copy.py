"""shardwise.launcher.agent.run_copy: what a successor finds in a bucket, and that only one host 0 writes there."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.train.s3_server import serving

from shardwise.launcher.agent import run_copy
from shardwise.launcher.agent.run_copy import KEPT, OutrunError, RunCopy
from shardwise.protocol.contract import JOB_FILE, LOGS, METRICS, PROGRAMS, RUN_ID, SUMMARY
from shardwise.protocol.errors import RunDirectoryError, StorageError, TakenOverError
from shardwise.protocol.takeover import ATTEMPT_FILE

Make = Callable[..., RunCopy]


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket's address."""
    with serving() as bucket:
        yield bucket.url


@pytest.fixture(params=["folder", "bucket"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Return what makes the copy of one more host, whose folder is empty."""
    in_bucket = request.param == "bucket"
    url = f"{request.getfixturevalue('bucket')}/{tmp_path.name}" if in_bucket else str(tmp_path / "bucket")

    def made(host: int = 0) -> RunCopy:
        folder = tmp_path / f"host-{len(list(tmp_path.glob('host-*')))}"
        (folder / LOGS).mkdir(parents=True)
        return RunCopy(folder, url, host)

    return made


def written(copy: RunCopy, *names: str, text: str = "text") -> None:
    """Write these files into the folder of a host, each with its name in it."""
    for name in names:
        path = copy.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text} of {name}\n")


def found(copy: RunCopy) -> dict[str, str]:
    """What lies in the folder of a host."""
    files = [path for path in copy.directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(copy.directory)): path.read_text() for path in files}


def test_a_successor_begins_with_what_was_kept(make: Make) -> None:
    """Also where host 0 was killed: its folder is gone, and what it has kept is in that of the next."""
    first = make()
    first.take_kept()
    written(first, *KEPT)
    first.keep(must=True)
    written(first, METRICS, text="more")
    first.keep(must=True)

    second = make()
    second.take_kept()
    assert found(second) == found(first)


def test_only_the_later_host_0_writes(make: Make) -> None:
    """One that was taken over writes over nothing, and is told so, whether or not it must."""
    first, second = make(), make()
    first.take_kept()
    written(first, JOB_FILE)
    first.keep(must=True)
    second.take_kept()
    written(second, JOB_FILE, text="newer")
    second.keep(must=True)

    written(first, JOB_FILE, text="stale")
    for must in (True, False):
        with pytest.raises(TakenOverError, match="another host 0 has taken over"):
            first.keep(must=must)
    third = make()
    third.take_kept()
    assert found(third) == {JOB_FILE: f"newer of {JOB_FILE}\n"}


def test_two_that_begin_at_once(make: Make) -> None:
    """Of two that have both found nothing only one writes a file."""
    first, second = make(), make()
    for copy in (first, second):
        copy.take_kept()
    written(first, RUN_ID, text="first")
    written(second, RUN_ID, text="second")
    first.keep(must=True)
    with pytest.raises(TakenOverError):
        second.keep(must=True)


def test_the_one_before_writes_while_the_next_begins(make: Make) -> None:
    """The next one begins again with what was written; once it leads, it writes over what still comes late."""
    first, second = make(), make()
    first.take_kept()
    written(first, *KEPT)
    first.keep(must=True)
    second.is_newest = lambda: True
    second.take_kept()
    written(first, METRICS, text="late")
    first.keep(must=False)

    written(second, METRICS, text="stale")
    with pytest.raises(OutrunError):
        second.keep(must=True)
    second.take_kept()
    assert (second.directory / METRICS).read_text() == f"late of {METRICS}\n"
    written(second, KEPT[-1], text="newer")
    second.keep(must=True)

    written(first, METRICS, text="later")
    first.keep(must=False)
    written(second, METRICS, text="newer")
    second.keep(must=False)
    written(first, *KEPT, text="latest")
    with pytest.raises(TakenOverError):
        first.keep(must=False)
    third = make()
    third.take_kept()
    assert (third.directory / METRICS).read_text() == f"newer of {METRICS}\n"


def test_no_attempt_of_one_that_was_taken_over(make: Make) -> None:
    """A host 0 that counts an attempt when the next one leads already may not give its orders, which counts again."""
    first, second = make(), make()
    first.take_kept()
    written(first, *KEPT)
    first.keep(must=True)
    second.is_newest = lambda: True
    second.take_kept()
    written(second, f"{LOGS}/leader.json", text="second")
    second.keep(must=True)

    written(first, ATTEMPT_FILE, text="first")
    written(first, f"{LOGS}/leader.json", text="running")
    with pytest.raises(TakenOverError):
        first.keep(must=True)
    written(second, ATTEMPT_FILE, text="second")
    second.keep(must=True)


def test_a_write_whose_answer_was_lost(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one meets what this host has written itself: nobody has taken over."""
    copy = make()
    copy.take_kept()
    folder = copy._folder
    for text in ("first", "second"):
        written(copy, SUMMARY, text=text)
        monkeypatch.setattr(copy, "_folder", _Unheard(folder))
        copy.keep(must=False)
    monkeypatch.setattr(copy, "_folder", folder)
    written(copy, SUMMARY, text="third")
    copy.keep(must=True)
    written(copy, SUMMARY, text="fourth")
    copy.keep(must=True)


def test_the_other_hosts(make: Make) -> None:
    """They copy what their own trainers leave, and nothing that is host 0's, of which they take how the run ended."""
    leading, other = make(), make(1)
    own, trace = f"{LOGS}/attempt-0/host-1.log", "profile/attempt-0/rank-1/memory.json"
    leading.take_kept()
    written(leading, *KEPT)
    leading.keep(must=True)
    other.take_leader()
    written(other, own, trace, f"{PROGRAMS}/all/program", f"{LOGS}/.standby-1.log", f"{LOGS}/leader.7.partial")
    written(other, f"{LOGS}/leader", text="not mine")
    other.finish()

    for name in (f"{LOGS}/leader.json", SUMMARY, METRICS):
        assert found(other)[name] == found(leading)[name]
    everything = make()
    for name in (own, trace):
        (everything.directory / name).parent.mkdir(parents=True)
    everything.take(own, trace, f"{LOGS}/.standby-1.log", f"{LOGS}/leader.7.partial")
    assert sorted(found(everything)) == [own, trace]
    everything.take_leader()
    assert found(everything)[f"{LOGS}/leader"] == found(leading)[f"{LOGS}/leader"]


def test_what_no_bucket_can_have(make: Make) -> None:
    """A program may leave it in its folder: the rest is copied, and nobody waits for the other end of a pipe."""
    copy, everything = make(1), make()
    for name, kind in (("pipe", stat.S_IFIFO), ("socket", stat.S_IFSOCK)):
        os.mknod(copy.directory / name, kind | 0o600)
    (copy.directory / "nowhere").symlink_to("gone")
    deep = "/".join(["a" * 250] * 4)
    kept, left = ["mine/50% of \u00e9.txt", f"{LOGS}/zz.log"], ["two\nlines", os.fsdecode(b"\xff"), f"{deep}/name"]
    written(copy, *kept)
    for name in left:
        (copy.directory / name).parent.mkdir(parents=True, exist_ok=True)
        (copy.directory / name).touch()
    copy.finish()

    (everything.directory / "mine").mkdir()
    everything.take(*kept)
    assert sorted(found(everything)) == sorted(kept)


def test_old_logs_go(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one attempt go, of every host, and nothing else; no run ends where nothing may be removed."""
    first, other = make(), make(1)
    names = [f"{LOGS}/attempt-{number}/host-{host}.log" for number in (1, 10) for host in (0, 1)]
    first.take_kept()
    written(first, *names[::2])
    written(other, *names[1::2])
    first.finish()
    other.finish()
    first.remove_below([f"{LOGS}/attempt-1/"])
    successor = make()
    for name in names:
        (successor.directory / name).parent.mkdir(parents=True, exist_ok=True)
    successor.take(*names)
    assert sorted(found(successor)) == names[2:]
    monkeypatch.setattr(first, "_folder", _Unwell("PERMISSION_DENIED: not you"))
    first.remove_below([f"{LOGS}/attempt-10/"])


def test_the_end_of_long_metrics(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of metrics that are long only the end is taken, in whole lines."""
    monkeypatch.setattr(run_copy, "_TAIL_BYTES", 25)
    leading, other = make(), make(1)
    leading.take_kept()
    (leading.directory / METRICS).write_text("".join(f"line {n:04}\n" for n in range(1000)))
    leading.keep(must=True)
    other.finish()

    assert (other.directory / METRICS).read_text() == "line 0998\nline 0999\n"


def test_not_more_often_than_is_due(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that grows is copied again when it is due, the later the larger it is, or when somebody asks for it."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(run_copy, "_BYTES_PER_SECOND", 10)
    copy, reader = make(), make()
    copy.take_kept()

    def is_copied(text: str) -> bool:
        (copy.directory / METRICS).write_text(text)
        copy._copy_all(due=True)
        reader.take(METRICS)
        return (reader.directory / METRICS).read_text() == text

    assert is_copied("a" * 100)
    now[0] = run_copy.COPY_SECONDS + 9.0
    assert not is_copied("b" * 100)
    now[0] = run_copy.COPY_SECONDS + 10.0
    assert is_copied("c" * 100)
    assert not is_copied("d" * 100)
    copy.soon()
    assert is_copied("e" * 100)


class _Unheard:
    """A bucket that writes, and whose answers are lost."""

    def __init__(self, folder: Any) -> None:
        self._folder = folder

    def read(self, name: str) -> Any:
        """Read."""
        return self._folder.read(name)

    def write(self, *given: Any, **more: Any) -> Any:
        """Write, and fail."""
        written = self._folder.write(*given, **more)
        if written.result().generation:
            raise ValueError("UNAVAILABLE: the connection was lost")
        return written


class _Unwell:
    """A bucket that answers nothing but this."""

    def __init__(self, words: str) -> None:
        self._words = words

    def write(self, *_: Any, **__: Any) -> None:
        """Fail."""
        raise ValueError(self._words)

    delete_range = write


def test_a_bucket_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may pass is left to the next time unless it must be written now; what a person must mend is told at once."""
    (tmp_path / JOB_FILE).touch()
    copy = RunCopy(tmp_path, str(tmp_path / "bucket"), 0)
    monkeypatch.setattr(copy, "_folder", _Unwell("UNAVAILABLE: nobody answers"))
    copy.keep(must=False)
    with pytest.raises(StorageError, match="cannot be written: UNAVAILABLE"):
        copy.keep(must=True)
    monkeypatch.setattr(copy, "_folder", _Unwell("PERMISSION_DENIED: not you"))
    with pytest.raises(RunDirectoryError, match="cannot be written: PERMISSION_DENIED"):
        copy.keep(must=False)


class _Picky:
    """A bucket that takes only some files."""

    def __init__(self, refused: set[str]) -> None:
        self.refused, self.asked = refused, list[str]()

    def write(self, name: str, _: bytes) -> Any:
        """Return what writes, or fails."""
        self.asked.append(name)
        error = ValueError("UNAVAILABLE: not this one") if name in self.refused else None
        return Mock(result=Mock(side_effect=error))


def test_a_file_that_is_refused_keeps_no_other_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is copied, also at the end of a host, which asks once; one that refuses several is asked no more."""
    names = [f"{number}.txt" for number in range(8)]
    copy = RunCopy(tmp_path / "host", str(tmp_path / "bucket"), 1)
    written(copy, *names)
    order = list(copy._names())
    picky = _Picky(set(order[:1]))
    monkeypatch.setattr(copy, "_folder", picky)

    copy._copy_all(due=False)
    assert picky.asked == order

    away = _Picky(set(order))
    written(copy, *names, text="more")
    monkeypatch.setattr(copy, "_folder", away)
    copy._copy_all(due=False)
    assert away.asked == order[:3]
