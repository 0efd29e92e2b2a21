"""shardwise.launcher.leader.stacks: the file of all ranks' stacks."""

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from shardwise.launcher.leader.old_logs import STACKS_KEPT
from shardwise.launcher.leader.stacks import write_stacks
from shardwise.protocol.contract import LOGS
from shardwise.protocol.requests import Stacks


def state_in(directory: Path) -> Any:
    """Return the state of a leader of two hosts, of which the last does not answer."""
    (directory / LOGS).mkdir()
    channel = Mock(ask_all=AsyncMock(return_value={1: None, 0: Stacks(text="in step()")}))
    return SimpleNamespace(directory=directory, channel=channel, events=Mock(), copy=None)


def test_the_stacks_of_all_ranks(tmp_path: Path) -> None:
    """They are in one file, whose name is in the event; a host that does not answer is named."""
    state = state_in(tmp_path)
    asyncio.run(write_stacks(3, state))

    (file,) = (tmp_path / LOGS).iterdir()
    assert file.read_text() == "rank 0: in step()\n\nrank 1: its host did not answer\n"
    state.events.write.assert_called_once_with("stacks", attempt=3, file=f"{LOGS}/{file.name}")
    assert file.name.startswith("stacks-3-")


def test_a_hiccup_every_hour(tmp_path: Path) -> None:
    """The files of an attempt do not fill its volume, nor their copies a bucket."""
    state = state_in(tmp_path)
    state.copy = Mock()
    before = [f"{LOGS}/stacks-3-2026010{day}T000000.txt" for day in range(1, 10)]
    assert len(before) == 1 + STACKS_KEPT
    for name in before:
        (tmp_path / name).touch()
    asyncio.run(write_stacks(3, state))

    assert len(list((tmp_path / LOGS).iterdir())) == 1 + STACKS_KEPT
    state.copy.remove_below.assert_called_once_with([before[1]])


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_no_attempt_ends_for_its_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    """Where they cannot be written, whether that may pass or not, the log says so, and no event names a file."""
    state = state_in(tmp_path)
    monkeypatch.setattr(Path, "write_text", Mock(side_effect=OSError(number, "no")))
    asyncio.run(write_stacks(3, state))

    state.events.write.assert_not_called()
    assert "the stacks of attempt 3 could not be written" in capsys.readouterr().err
