"""The temporary folder of a command, in which unix sockets lie: how long its path may be."""

import os
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import COMMAND, MODEL, QUICKSTART, person

from shardwise.launcher import scratch as scratch_module
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
    """A socket at the longest path can be bound; with one byte more the folder is in /tmp, and its owner's alone."""
    longest = longest_socket(100)
    most = _KERNEL_TAKES - _OF_PREFIX - len(longest)

    monkeypatch.setattr(tempfile, "tempdir", str(folder_of_length(short, most)))
    with scratch_folder(longest) as scratch, socket.socket(socket.AF_UNIX) as bound:
        (scratch / longest).parent.mkdir(parents=True)
        bound.bind(str(scratch / longest))

    above = folder_of_length(short, most + 1)
    monkeypatch.setattr(tempfile, "tempdir", str(above))
    with scratch_folder(longest) as scratch:
        assert str(scratch.parent) == scratch_module._SHORT
        assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
        assert [*above.iterdir()] == []
    assert not scratch.exists()


def test_no_folder_that_is_short_enough(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be made in /tmp either, a temporary folder that is too deep is refused in words."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder_of_length(short, 80)))
    monkeypatch.setattr(scratch_module, "_SHORT", str(short / "none"))
    with pytest.raises(UsageError, match=r"path of 80 bytes, expected at most \d+, .* \(No such file .* set TMPDIR"):
        scratch_folder(longest_socket(100)).__enter__()


@pytest.mark.parametrize(
    "words",
    [
        ["run", "job.yaml", f"--set={MODEL}", "--set=training.steps=2"],
        ["tokenize", "job.yaml", "--to", "t", "--workers", "2"],
    ],
    ids=["run", "tokenize"],
)
def test_a_command_works(short: Path, tmp_path: Path, words: list[str]) -> None:
    """A command whose temporary folder is too deep for sockets does its work, and leaves nothing there."""
    (tmp_path / "job.yaml").write_text(QUICKSTART.read_text())
    (tmp_path / "README.md").write_text("The quick brown fox. " * 100)
    deep = folder_of_length(short, 80)
    environment = {**person(tmp_path / "cache"), "TMPDIR": str(deep)}

    ended = subprocess.run(
        [*COMMAND, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert ended.returncode == ExitCode.OK, ended.stderr
    assert [*deep.iterdir()] == []
