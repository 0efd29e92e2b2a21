"""What the command says of an agent that ends again and again."""

import errno
import os
from pathlib import Path
from unittest.mock import patch

from shardwise.launcher.short_lives import why_given_up


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """The log of the agent is on the same full disk, and empty: what says why is the directory itself."""
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "agent-0.log").touch()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with patch("os.fsync", side_effect=full):
        said = why_given_up(0, 8, 1, logs / "agent-0.log")

    assert said == (
        f"the agent of host 0 ended 8 times as soon as it was started, the last time with exit code 1: {tmp_path} "
        "cannot be written (OSError: No space left on device); give the command again once it can"
    )
    assert [each.name for each in logs.iterdir()] == ["agent-0.log"]


def test_an_agent_with_last_words(tmp_path: Path) -> None:
    """They are shown where its directory is not the reason."""
    log = tmp_path / "agent-1.log"
    log.write_text("one\ntwo\n")

    said = why_given_up(1, 8, 3, log)

    assert said.startswith("the agent of host 1 ended 8 times")
    assert said.endswith("exit code 3; its log ends with:\none\ntwo")
    assert list(tmp_path.iterdir()) == [log]
