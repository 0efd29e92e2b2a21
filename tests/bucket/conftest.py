"""A folder of checkpoints, locally and in a bucket, and runs that hold it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.train.s3_server import serving

from shardwise.bucket.lease import Lease


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket's address."""
    with serving() as bucket:
        yield bucket.url


@pytest.fixture(params=["folder", "bucket"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for checkpoints that nobody has used."""
    if request.param == "folder":
        return str(tmp_path / "checkpoints")
    return f"{request.getfixturevalue('bucket')}/{tmp_path.name}"


def of(root: str, run: str) -> Lease:
    """A start of a run."""
    return Lease(root, run=run, name="job", directory=f"/runs/{run}")


def silently(_words: str) -> None:
    """Nobody is told."""
