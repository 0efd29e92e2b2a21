"""shardwise.launcher.leader.state: the leader's account of a run's time, and how much of its deadline is left."""

import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.launcher.conftest import JOB

from shardwise.job.load import load
from shardwise.launcher.leader.state import LeaderState
from shardwise.launcher.system import lines
from shardwise.protocol.contract import METRICS
from shardwise.train.metrics import MetricsLog


def state_in(directory: Path, overrides: tuple[str, ...] = (), **config: Any) -> LeaderState:
    """Return the state of a run of one host, which begins now."""
    (directory / "logs").mkdir(exist_ok=True)
    facts = {"directory": directory, "run": "one", "scratch": "", "listen": "127.0.0.1:1", "num_hosts": 1}
    given = Mock(**{**facts, "started_at": time.time(), **config})
    return LeaderState(given, load(JOB, overrides), Mock(agent_id="own"), None)


@pytest.mark.parametrize("jump_seconds", [3600.0, -3600.0])
def test_a_wall_clock_that_is_set_is_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_seconds: float
) -> None:
    """Neither where the time went nor how long ago the last end was counts the jump."""
    right, began_at = time.time, time.time()
    state = state_in(tmp_path, started_at=began_at)
    state.begin(Mock(number=0, progress={}))
    state.end(well=False)
    monkeypatch.setattr(time, "time", lambda: right() + jump_seconds)
    state.begin(Mock(number=1, progress={}))

    assert state.since_end is not None
    assert 0 <= state.since_end < 600
    assert sum(state.goodput.values()) == pytest.approx(right() - began_at, abs=5)


@pytest.mark.parametrize(("one_machine", "left"), [(True, 40.0), (False, 90.0)])
def test_time_in_a_queue_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, one_machine: bool, left: float
) -> None:
    """The pods of a cluster were asked for a minute ago, and the trainers started ten seconds ago."""
    config: dict[str, Any] = {"started_monotonic": time.monotonic() - 60, "one_machine": one_machine}
    state = state_in(tmp_path, ("deadline=100s",), **config)
    if not one_machine:
        assert state.deadline_seconds == 100.0
    state.note(began_at=time.time() - 10)

    assert state.deadline_seconds == pytest.approx(left, abs=5)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    assert state.deadline_seconds == pytest.approx(left, abs=5), "a clock that is set is no time"
    assert state_in(tmp_path, **config).deadline_seconds is None


@pytest.mark.parametrize("whole", ["", '{"step": 1, "stepSeconds": 0.1}\n'])
@pytest.mark.parametrize("piece_bytes", [4, 1 << 20])
def test_a_line_that_was_cut_short_before_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: str, piece_bytes: int
) -> None:
    """The trainers remove it, and what they write in its place is read from its beginning."""
    monkeypatch.setattr(lines, "_PIECE_BYTES", piece_bytes)
    (tmp_path / METRICS).write_text(whole + '{"step": 2, "lo')
    state = state_in(tmp_path)
    log = MetricsLog(tmp_path / METRICS)
    log.write({"event": "restored", "step": 1, "attempt": 3})
    log.close()
    state.metrics.read()

    assert state.record.metrics_offset == len(whole)
    assert (state.metrics.attempt, state.metrics.first_step) == (3, 1)
