"""shardwise.train.data.folder: several processes write the same files into one folder, and one of them clears up."""

import errno
import os
from pathlib import Path

import pytest

from shardwise.protocol.errors import StorageError
from shardwise.train.data.folder import Folder


def test_who_is_late_takes_what_another_has_written(tmp_path: Path) -> None:
    """What was half written is gone once the other has everything whole, with this file: that is no error."""
    folder = Folder(str(tmp_path))

    with folder.creating("part") as late:
        late.write_bytes(b"whole")
        folder.write("part", b"whole")
        folder.remove_partial()

    assert (tmp_path / "part").read_bytes() == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["part"]


def test_a_file_that_nobody_has_written_is_missed(tmp_path: Path) -> None:
    """If what was half written is gone and there is no whole one, the writer is told."""
    folder = Folder(str(tmp_path))

    with pytest.raises(FileNotFoundError), folder.creating("part") as lost:  # noqa: PT012
        lost.write_bytes(b"whole")
        folder.remove_partial()


def test_a_full_disk_on_the_way_to_a_bucket_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes to a bucket is a file of this machine first: that this disk is full is neither the bucket's fault."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = Folder("memory://full")

    words = rf"memory://full/part.* in '{tmp_path}'.*No space left.* TMPDIR"
    with pytest.raises(StorageError, match=words), folder.creating("part"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert folder.size("part") is None
    assert not [*tmp_path.iterdir()]
