"""The commands of README and docs that are marked `run` (see `test_docs.py`), as a reader types them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.test_docs import PAGES, ROOT, RUN, marked

ALONE = "fine-tune-llama.md"
"""A page that needs nothing of those before it; what it does is in tests/cli/test_main_job.py too."""


@pytest.mark.parametrize("alone", [False, pytest.param(True, marks=pytest.mark.long)], ids=["all others", ALONE])
def test_commands_run(tmp_path: Path, *, alone: bool) -> None:
    """What is marked so ends well when it is typed as it stands, in the order of the pages."""
    for name in ("README.md", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    pages = [page for page in PAGES if (page.name == ALONE) == alone]
    commands = [command for page in pages for mark, block in marked(page) if mark == RUN for command in block]
    assert len(commands) >= (7 if alone else 10)
    bin_folder = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "SHARDWISE_CACHE": str(tmp_path / "cache"),
    }
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
