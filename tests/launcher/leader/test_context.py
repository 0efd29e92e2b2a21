"""shardwise.launcher.leader.context: how much of a deadline is left, on a machine of one's own and in a cluster."""

import time
from dataclasses import replace
from typing import cast
from unittest.mock import Mock

import pytest
from tests.launcher.conftest import JOB

from shardwise.job.load import load
from shardwise.launcher.agent.config import AgentConfig
from shardwise.launcher.leader.context import Context


@pytest.mark.parametrize(("one_machine", "left"), [(True, 40.0), (False, 90.0)])
def test_time_in_a_queue_does_not_count(*, one_machine: bool, left: float) -> None:
    """The pods of a cluster were asked for a minute ago, and the trainers started ten seconds ago."""
    now = time.time()
    config = Mock(started_monotonic=time.monotonic() - 60, one_machine=one_machine)
    parts = dict.fromkeys(("host", "members", "channel", "metrics", "baseline", "stragglers", "events", "stop"))
    job = load(JOB, ["deadline=100s"])
    context = Context(config=cast("AgentConfig", config), job=job, **parts)  # type: ignore[arg-type]

    assert context.deadline_seconds(now - 10) == pytest.approx(left, abs=5)
    if one_machine:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time", lambda: now + 3600)
            assert context.deadline_seconds(now - 10) == pytest.approx(left, abs=5), "a clock that is set is no time"
    else:
        assert context.deadline_seconds(None) == 100.0
    assert replace(context, job=load(JOB)).deadline_seconds(None) is None
