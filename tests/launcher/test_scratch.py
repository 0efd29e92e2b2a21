"""The temporary folder of a command, in which unix sockets lie: how long its path may be."""

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import COMMAND, MODEL, QUICKSTART, person

from shardwise.launcher.ray.node import longest_socket
from shardwise.launcher.scratch import scratch_folder
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import UsageError

_KERNEL_TAKES = 107
_OF_PREFIX = len("/sw-12345678/")


@pytest.fixture
def short() -> Iterator[Path]:
    """Return a folder with a short path, for pytest's own are deep."""
    with tempfile.TemporaryDirectory(prefix="swt-", dir="/tmp") as folder:
        yield Path(folder)


def folder_of_length(short: Path, length: int) -> Path:
    """Return a new folder whose path has so many bytes."""
    made = short / ("x" * (length - len(os.fsencode(short)) - 1))
    made.mkdir()
    return made


def test_the_longest_that_goes(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket at the longest path can be bound; one byte more is refused with the words for a person."""
    longest = longest_socket(100)
    most = _KERNEL_TAKES - _OF_PREFIX - len(longest)

    monkeypatch.setattr(tempfile, "tempdir", str(folder_of_length(short, most)))
    with scratch_folder(longest) as scratch, socket.socket(socket.AF_UNIX) as bound:
        (scratch / longest).parent.mkdir(parents=True)
        bound.bind(str(scratch / longest))

    above = folder_of_length(short, most + 1)
    monkeypatch.setattr(tempfile, "tempdir", str(above))
    with pytest.raises(UsageError, match=f"has a path of {most + 1} bytes, expected at most {most}, .* TMPDIR"):
        scratch_folder(longest).__enter__()
    assert [*above.iterdir()] == []


@pytest.mark.parametrize("words", [["run", "job.yaml", f"--set={MODEL}"], ["tokenize", "job.yaml", "--to", "t"]])
def test_a_command_says_so(short: Path, tmp_path: Path, words: list[str]) -> None:
    """A temporary folder that is too deep ends a command at once, and no agent starts."""
    (tmp_path / "job.yaml").write_text(QUICKSTART.read_text())
    (tmp_path / "README.md").write_text("The quick brown fox. " * 100)
    environment = {**person(tmp_path / "cache"), "TMPDIR": str(folder_of_length(short, 80))}
    workers = ["--workers", "2"] if words[0] == "tokenize" else []

    ended = subprocess.run(
        [*COMMAND, *words, *workers], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert ended.returncode == ExitCode.USAGE
    assert ended.stderr.startswith("error: the temporary folder /tmp/swt-")
    assert "set TMPDIR to a shorter one" in ended.stderr
    assert not [*tmp_path.glob("runs/*/logs/agent-*.log")]
