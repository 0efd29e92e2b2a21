"""The process that holds a place for a slice: it waits, and goes as soon as its pod is told to."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_it_goes_when_it_is_told_to(how: str) -> None:
    """With success on SIGTERM, though it was asked for nothing before; it says what it is for."""
    command = [sys.executable, "-m", "shardwise.launcher.placeholder"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "holds a place for a slice" in process.stdout.readline()
        getattr(process, how)()

        assert process.wait(30) == (0 if how == "terminate" else -9)
