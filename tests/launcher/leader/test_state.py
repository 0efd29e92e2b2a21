"""shardwise.launcher.leader.state: the leader's account of a run's time."""

import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from shardwise.launcher.leader.state import LeaderState


@pytest.mark.parametrize("jump_seconds", [3600.0, -3600.0])
def test_a_wall_clock_that_is_set_is_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_seconds: float
) -> None:
    """Neither where the time went nor how long ago the last end was counts the jump."""
    (tmp_path / "logs").mkdir()
    right, began_at = time.time, time.time()
    config = Mock(directory=str(tmp_path), run="one", scratch="", listen="127.0.0.1:1", started_at=began_at)
    state = LeaderState(config)
    state.begin(Mock(number=0, seconds={}))
    state.end(well=False)
    monkeypatch.setattr(time, "time", lambda: right() + jump_seconds)
    state.begin(Mock(number=1, seconds={}))

    assert state.since_end is not None
    assert 0 <= state.since_end < 600
    assert sum(state.goodput(0.0).values()) == pytest.approx(right() - began_at, abs=5)
