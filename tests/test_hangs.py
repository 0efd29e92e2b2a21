"""A test that hangs or crashes ends the whole run soon, by name."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
QUICK = "def test_quick(): pass\n"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import threading\ndef test_stuck(): threading.Event().wait()\n", "Timeout (0:00:01)!"),
        ("import os\ndef test_stuck(): os.abort()\n", "Fatal Python error: Aborted"),
    ],
    ids=["hangs", "crashes"],
)
def test_a_stuck_test_ends_the_run_by_name(tmp_path: Path, body: str, words: str) -> None:
    """With the Makefile's options and a limit of one second, the run fails, names the test and shows its stack."""
    (tmp_path / "test_a.py").write_text(body + QUICK)
    (tmp_path / "test_b.py").write_text(QUICK)
    makefile = (ROOT / "Makefile").read_text()
    options = re.search(r"^PYTEST = \S+ (?P<options>.+)$", makefile, flags=re.MULTILINE)
    assert options is not None
    command = [sys.executable, "-m", "pytest", *options["options"].replace("$(WORKERS)", "2").split()]
    limit = ["-c", str(ROOT / "pyproject.toml"), "-o", "faulthandler_timeout=1"]
    plugins = ["-p", "xdist", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading the others takes longer than the test

    ended = subprocess.run(
        [*command, *limit, *plugins, str(tmp_path)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "worker restarting disabled" in ended.stdout
    assert re.search(r"crashed while running '\S*test_a\.py::test_stuck'", ended.stdout)
    assert words in ended.stderr
    assert re.search(r'test_a\.py", line 2 in test_stuck', ended.stderr)
