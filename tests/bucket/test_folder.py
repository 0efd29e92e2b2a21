"""The places of files as TensorStore knows them: local folders and buckets."""

from pathlib import Path

import pytest
from tests.bucket.conftest import of, silently

from shardwise.train.checkpoint import steps


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_path_with_dots_is_the_folder_that_it_leads_to(scheme: str, tmp_path: Path) -> None:
    """As the file system has it, links included: the folder is held, listed, and written to."""
    (tmp_path / "disk" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "below")
    root = f"{scheme}{tmp_path}/link/../checkpoints"
    with of(root, "run").held(silently):
        assert steps(root) == []
    assert (tmp_path / "disk" / "checkpoints" / "LEASE").exists()
