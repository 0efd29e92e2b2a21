"""shardwise.launcher.leader.attempt: the orders of an attempt, where the leader's volume fails."""

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from shardwise.launcher.leader.attempt import Attempt
from shardwise.launcher.leader.metrics_tail import MetricsTail
from shardwise.launcher.ray.rpc import CallError
from shardwise.launcher.system import lines


@pytest.mark.parametrize(("number", "expected"), [(errno.EIO, CallError), (errno.EACCES, PermissionError)])
def test_nothing_is_ordered_before_it_is_known_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    """A fork would begin again at its first step; so an attempt that cannot read is one that could not be started."""
    channel = Mock(agent_ids={}, ask=AsyncMock())
    state: Any = SimpleNamespace(
        config=SimpleNamespace(num_hosts=1),
        job=SimpleNamespace(spec=SimpleNamespace(program=None)),
        channel=channel,
        baseline=Mock(),
        stragglers=Mock(),
        metrics=MetricsTail(tmp_path, 0),
    )
    monkeypatch.setattr(lines, "content_of", Mock(side_effect=OSError(number, "no")))

    with pytest.raises(expected, match=rf"Errno {number}\] no"):
        asyncio.run(Attempt(1, state).give_orders())

    channel.ask.assert_not_called()
