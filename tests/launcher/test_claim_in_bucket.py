"""shardwise.launcher.claim_in_bucket: one job at a time, and of that job the newest host 0 at once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.train.s3_server import serving

from shardwise.bucket import lease
from shardwise.launcher import claim_in_bucket
from shardwise.launcher.agent.run_copy import RunCopy
from shardwise.launcher.claim_in_bucket import claimed_in_bucket
from shardwise.protocol.contract import LOGS, RUN_ID
from shardwise.protocol.errors import RunDirectoryError


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket's address."""
    with serving() as bucket:
        yield bucket.url


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that is renewed soon, and nobody who waits for its end."""
    monkeypatch.setattr(claim_in_bucket, "FREE_WITHIN_SECONDS", 0.0)
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(lease, "LOOK_SECONDS", 0.01)


def copy(bucket: str, folder: Path) -> RunCopy:
    """The empty folder of one more host 0."""
    (folder / LOGS).mkdir(parents=True)
    return RunCopy(folder, f"{bucket}/{folder.parent.name}", 0)


def test_another_job(bucket: str, tmp_path: Path) -> None:
    """One that lives is not disturbed; when it has ended the directory is free."""
    first, second = copy(bucket, tmp_path / "0"), copy(bucket, tmp_path / "1")
    with (
        claimed_in_bucket(first, "uid-0", "mine"),
        pytest.raises(RunDirectoryError, match=r"the run 'mine' in s3://.* lives.*another spec.pod.directory"),
        claimed_in_bucket(second, "other-uid-0", "other"),
    ):
        pass
    with claimed_in_bucket(second, "other-uid-0", "other"):
        pass


def test_the_same_job(bucket: str, tmp_path: Path) -> None:
    """Its next host 0 does not wait, and is the same run to the folder of checkpoints."""
    first, second = copy(bucket, tmp_path / "0"), copy(bucket, tmp_path / "1")
    with claimed_in_bucket(first, "uid-0", "mine"):
        first.keep(must=True)
        with claimed_in_bucket(second, "uid-1", "mine"):
            assert (second.directory / RUN_ID).read_text() == (first.directory / RUN_ID).read_text()
