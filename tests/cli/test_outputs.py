"""shardwise.cli.outputs: where a command is to write is looked at before its work, and what fails is said in words."""

import errno
import os
from pathlib import Path

import pytest

from shardwise.cli.outputs import check_new_file, check_writable, writing
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import StorageError, UsageError


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("folder", "Is a directory"),
        ("missing/out", "No such file or directory"),
        ("file/out", "Not a directory"),
    ],
)
def test_a_place_that_cannot_be_written(place: str, why: str, tmp_path: Path) -> None:
    """It is named, with the reason, whether the file is to be replaced or written in its place."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    before = {*tmp_path.iterdir()}
    for check in (check_new_file, check_writable):
        with pytest.raises(UsageError, match=rf"{place}: cannot be written \({why}\)"):
            check(tmp_path / place)
    assert {*tmp_path.iterdir()} == before


def test_a_folder_in_which_nothing_can_be_made() -> None:
    """Beside a file that is there nothing can be made to take its place, though it can be written itself."""
    there = Path("/proc/self/comm")
    check_writable(there)
    with pytest.raises(UsageError, match="/proc/self/comm: cannot be written"):
        check_new_file(there)


def test_a_place_that_can_be_written(tmp_path: Path) -> None:
    """To look changes nothing: no file is left, and one that is there stays as it is."""
    there = tmp_path / "there"
    there.write_text("old")
    for check in (check_new_file, check_writable):
        check(there)
        check(tmp_path / "new")
    assert {path: path.read_text() for path in tmp_path.iterdir()} == {there: "old"}


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [(errno.ENOSPC, StorageError, ExitCode.STORAGE), (errno.EROFS, UsageError, ExitCode.USAGE)],
    ids=["full", "read-only"],
)
def test_a_write_that_fails(number: int, kind: type[StorageError | UsageError], code: int, tmp_path: Path) -> None:
    """What may pass has the exit code of storage; what a person must change is wrong usage."""
    with (
        pytest.raises(kind, match=rf"out: cannot be written \({os.strerror(number)}\)") as error,
        writing(tmp_path / "out"),
    ):
        raise OSError(number, os.strerror(number))
    assert error.value.exit_code == code
