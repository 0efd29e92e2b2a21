"""The run directory's small files: whole or absent."""

from pathlib import Path

import pytest

from shardwise.job.errors import RunDirectoryError
from shardwise.train.run_directory import RunDirectory


def test_summaries_are_whole_or_absent(tmp_path: Path) -> None:
    """A summary is read back as written, is empty before the first, and a broken one is refused by name."""
    run = RunDirectory(tmp_path, 0)
    assert run.read_summary() == {}
    run.write_summary({"status": "running"})
    assert run.read_summary() == {"status": "running"}
    (tmp_path / "summary.json").write_text("[]")
    with pytest.raises(RunDirectoryError, match="expected a JSON object"):
        run.read_summary()
