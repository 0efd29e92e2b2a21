"""The commands of README and docs that are marked `run` (see `test_docs.py`), as a reader types them."""

import os
import subprocess
import sys
from pathlib import Path

from tests.test_docs import PAGES, ROOT, RUN, marked


def test_commands_run(tmp_path: Path) -> None:
    """What is marked so ends well when it is typed as it stands, in the order of the pages."""
    for name in ("README.md", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    commands = [command for page in PAGES for mark, block in marked(page) if mark == RUN for command in block]
    assert len(commands) >= 10
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
