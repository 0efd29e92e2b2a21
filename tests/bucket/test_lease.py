"""The lease of a folder of checkpoints: one live run writes there, locally and in a bucket."""

import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
from tests.bucket.conftest import of, silently

from shardwise.bucket import lease
from shardwise.bucket.folder import description, open_folder
from shardwise.protocol import storage
from shardwise.protocol.errors import CheckpointError, RunDirectoryError
from shardwise.train.checkpoint import steps


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that is renewed, and stale, soon."""
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(lease, "LOOK_SECONDS", 0.01)


def take(root: str, run: str, tell: Callable[[str], None] = silently) -> None:
    """Hold the folder, and give it back."""
    with of(root, run).held(tell):
        pass


@pytest.mark.usefixtures("quick")
def test_another_live_run_is_refused(root: str) -> None:
    """It is told by whom the folder is used and what to do; after the holder's end the folder is its own."""
    told: list[str] = []
    with of(root, "first").held(silently) as first:
        with pytest.raises(RunDirectoryError, match=r"the run 'job' in /runs/first lives.*checkpoint.path"):
            take(root, "second", told.append)
        first.renew()
    with of(root, "second").held(silently) as second:
        second.renew()

    assert len(told) == 1
    assert steps(root) == []


def test_the_same_run_goes_on_at_once(root: str) -> None:
    """However the last start ended; that one can commit nothing any more."""
    with of(root, "same").held(silently) as before, of(root, "same").held(silently) as after:
        after.renew()
        with pytest.raises(RunDirectoryError, match="has taken over; nothing was committed"):
            before.renew()
        assert (before.is_own(), after.is_own()) == (False, True)
        after.renew()
    with of(root, "other").held(silently) as other:
        other.renew()


def test_a_folder_that_is_another_one_all_at_once(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the lease is gone, as when a volume is not mounted any more, nothing is committed; it may come back."""
    monkeypatch.setattr(storage, "WAITS_SECONDS", ())
    folder = open_folder(description(root))
    with of(root, "first").held(silently) as first:
        held = folder.read(lease.LEASE).result().value
        folder.write(lease.LEASE, None).result()
        with pytest.raises(OSError, match="is gone") as gone:
            first.renew()
        assert storage.may_pass(gone.value)
        assert folder.read(lease.LEASE).result().state == "missing"
        folder.write(lease.LEASE, held).result()
        first.renew()


def test_a_run_that_was_killed_is_waited_for_and_followed(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It renews nothing any more; if it has only stood still it can commit nothing when it comes to itself."""
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.2)
    monkeypatch.setattr(lease, "LOOK_SECONDS", 0.01)
    told: list[str] = []
    with of(root, "still").held(silently) as still, of(root, "next").held(told.append) as following:
        following.renew()
        with pytest.raises(RunDirectoryError, match="the run 'job' in /runs/next has taken over"):
            still.renew()

    assert told == [f"{root}: waiting to see whether the run 'job' in /runs/still still lives"]


def test_only_one_of_many_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That all come at once does not matter: a write says what it replaces."""
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.01)
    monkeypatch.setattr(lease, "LOOK_SECONDS", 0.01)
    root, got, done = str(tmp_path), list[str](), threading.Barrier(8)

    def start(run: str) -> None:
        with ExitStack() as stack:
            try:
                stack.enter_context(of(root, run).held(silently))
            except RunDirectoryError:
                pass
            else:
                got.append(run)
            done.wait(30)

    threads = [threading.Thread(target=start, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(got) == 1


@pytest.mark.parametrize("content", ["", "{}", "[1]", "no", "[" * 3000])
def test_what_is_no_lease(tmp_path: Path, content: str) -> None:
    """It is said, and not taken for nothing; an empty file is what a full disk leaves."""
    (tmp_path / lease.LEASE).write_text(content)

    with pytest.raises(CheckpointError, match="says not whose files these are") if content else nullcontext():
        take(str(tmp_path), "run")


def test_a_run_that_was_killed_while_it_wrote_its_lease(tmp_path: Path) -> None:
    """What TensorStore leaves beside the lease is longer than the next one, and stands in no one's way."""
    take(str(tmp_path), "first")
    (tmp_path / "LEASE.__lock").write_text((tmp_path / "LEASE").read_text() + "}" * 50)
    with of(str(tmp_path), "first").held(silently) as again:
        assert (tmp_path / "LEASE").read_text().endswith("}" * 50), "what this test is about no longer happens"
        again.renew()
    take(str(tmp_path), "other")


def test_no_such_bucket(bucket: str) -> None:
    """A store answers a look as if the file were missing, and a write as if another had been quicker; it is told."""
    assert bucket != "s3://nowhere"
    with pytest.raises(CheckpointError, match="s3://nowhere/run cannot be used: nothing can be written"):
        take("s3://nowhere/run", "run")


def test_a_bucket_that_no_store_may_have() -> None:
    """A name that TensorStore refuses is an error in words, as is one that is not there."""
    with pytest.raises(CheckpointError, match=r"s3://No_Bucket!/run cannot be used: .*bucket"):
        take("s3://No_Bucket!/run", "run")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """It is an error in words."""
    (tmp_path / "file").touch()

    with pytest.raises(CheckpointError, match="cannot be used"):
        take(str(tmp_path / "file" / "below"), "run")
