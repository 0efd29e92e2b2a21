"""Where checkpoints lie: URLs, one listing, deletion."""

from pathlib import Path
from typing import Any

import pytest

from shardwise.protocol.errors import CheckpointError
from shardwise.train.checkpoint.store import Store


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        ("/data/run", {"driver": "file", "path": "/data/run/step-00000007/arrays/w/"}),
        ("/data/run/", {"driver": "file", "path": "/data/run/step-00000007/arrays/w/"}),
        ("file:///data/run", {"driver": "file", "path": "/data/run/step-00000007/arrays/w/"}),
        ("gs://bucket/run/1", {"driver": "gcs", "bucket": "bucket", "path": "run/1/step-00000007/arrays/w/"}),
        ("gs://bucket", {"driver": "gcs", "bucket": "bucket", "path": "step-00000007/arrays/w/"}),
        ("s3://bucket/run/", {"driver": "s3", "bucket": "bucket", "path": "run/step-00000007/arrays/w/"}),
    ],
)
def test_urls_become_tensorstore_places(root: str, expected: dict[str, Any]) -> None:
    """Local paths, file://, gs:// and s3:// with and without a prefix."""
    assert Store(root).spec(7, "arrays/w") == expected


@pytest.mark.parametrize("root", ["http://host/x", "gs:///x", "hdfs://x/y"])
def test_other_urls_are_refused(root: str) -> None:
    """The refusal says what would be taken."""
    with pytest.raises(CheckpointError, match="expected a local path"):
        Store(root)


def test_relative_paths_are_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later change of the working directory does not move the checkpoints."""
    monkeypatch.chdir(tmp_path)
    assert Store("runs/x").spec(0)["path"] == f"{tmp_path}/runs/x/step-00000000/"


def test_listing_knows_committed_from_partial(tmp_path: Path) -> None:
    """Foreign files and folders are passed over."""
    store = Store(str(tmp_path))
    store.write(20, "COMMITTED", b"x")
    store.write(3, "manifest.json", b"x")
    for name in ("step-7", "step-x", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000009").write_bytes(b"a file")
    assert store.steps() == {3: False, 20: True}


def test_nothing_there_is_an_empty_listing(tmp_path: Path) -> None:
    """A root that does not exist yet holds no steps, and a small file that is not there is None."""
    assert Store(str(tmp_path / "none")).steps() == {}
    assert Store(str(tmp_path / "none")).read(1, "COMMITTED") is None


def test_delete_takes_one_checkpoint(tmp_path: Path) -> None:
    """The neighbour stays; deleting what is not there is no error."""
    store = Store(str(tmp_path))
    for step in (1, 2):
        store.write(step, "arrays/w/c", b"x")
        store.write(step, "COMMITTED", b"x")
    store.delete(1)
    store.delete(5)
    assert store.steps() == {2: True}
    assert store.read(2, "arrays/w/c") == b"x"


def test_a_marker_that_is_set_aside_twice_keeps_what_it_says(tmp_path: Path) -> None:
    """As where a bucket has renamed it, its answer is lost, and it is asked again: renamed back, it must count."""
    store = Store(str(tmp_path))
    store.write(1, "COMMITTED", b"marker")
    store.set_aside(1)
    store.set_aside(1)
    assert store.read(1, "SET_ASIDE") == b"marker"
    assert store.steps() == {1: False}
