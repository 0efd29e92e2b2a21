"""The run directory: one live run at a time, whole files, and no commit by a run that was taken over from."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.job.contract import LOCK
from shardwise.job.errors import RunDirectoryError
from shardwise.train.run_directory import RunDirectory

HOLD = """
import sys, pathlib
from shardwise.train.run_directory import RunDirectory
with RunDirectory.held(pathlib.Path(sys.argv[1])) as held:
    print(held.incarnation, flush=True)
    sys.stdin.read()
"""


def test_a_second_live_run_is_refused_by_name_and_a_dead_one_is_not(tmp_path: Path) -> None:
    """While a process holds the directory another is refused with its pid; once it is killed the next may go on."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "0\n"
        with pytest.raises(RunDirectoryError, match=f"process {other.pid}"), RunDirectory.held(tmp_path):
            pass
        other.kill()
        other.wait()

    with RunDirectory.held(tmp_path) as held:
        assert held.incarnation == 1


def test_the_fence_refuses_a_run_that_was_taken_over_from(tmp_path: Path) -> None:
    """A process that lost the directory (a lock does not survive everything) may not commit."""
    with RunDirectory.held(tmp_path) as held:
        held.fence()
        (tmp_path / LOCK).write_text(json.dumps({"pid": 1, "incarnation": held.incarnation + 1}))
        with pytest.raises(RunDirectoryError, match="newer start"):
            held.fence()


def test_a_lock_file_that_was_half_written_is_no_obstacle(tmp_path: Path) -> None:
    """A process killed while it wrote its name leaves rubbish in the lock file; the next one starts over."""
    (tmp_path / LOCK).write_text('{"pid": 12')

    with RunDirectory.held(tmp_path) as held:
        assert held.incarnation == 0


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    """A file where the directory should be: said in words, with what to do."""
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match="--dir"), RunDirectory.held(tmp_path / "file"):
        pass


def test_summaries_are_whole_or_absent(tmp_path: Path) -> None:
    """A summary is read back as written, is empty before the first, and a broken one is refused by name."""
    with RunDirectory.held(tmp_path) as held:
        assert held.read_summary() == {}
        held.write_summary({"status": "running"})
        assert held.read_summary() == {"status": "running"}
        (tmp_path / "summary.json").write_text("[]")
        with pytest.raises(RunDirectoryError, match="expected a JSON object"):
            held.read_summary()
