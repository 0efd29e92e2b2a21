"""How long the leader waits for hosts, and what it says of a wait that ends without them."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest
from tests.launcher.leader.test_members import poll
from tests.launcher.leader.test_state import state_in

from shardwise.launcher.leader import wait_for_hosts
from shardwise.launcher.leader.state import LeaderState
from shardwise.launcher.leader.wait_for_hosts import hosts_are_there
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.leader_record import RunResult


def waiting_in(directory: Path) -> LeaderState:
    """Return the state of a run of three hosts in a cluster, one of which was lost; it waits ten seconds for each."""
    state = state_in(directory, ("recovery.replaceWithin=10s",), num_hosts=3, one_machine=False, url=None)
    state.host = Mock(agent_id="own", stuck="", leaving=asyncio.Event())
    state.ended_at = 0.0
    return state


def waited(
    state: LeaderState, monkeypatch: pytest.MonkeyPatch, polls: dict[int, tuple[float, float]]
) -> tuple[RunResult | None, float]:
    """Return the result of a wait, and its seconds, in which each host polls from one second up to another."""
    clock = 0.0

    async def look_again(seconds: float) -> None:
        """Have time go by, and the hosts poll."""
        nonlocal clock
        clock += seconds
        for host, (first, last) in polls.items():
            if first <= clock <= last:
                state.members.polled(poll(host, "a"), clock)

    monkeypatch.setattr(wait_for_hosts, "time", SimpleNamespace(monotonic=lambda: clock))
    monkeypatch.setattr(asyncio, "sleep", AsyncMock(side_effect=look_again))
    return asyncio.run(hosts_are_there(state)), clock


def test_each_lost_host_has_its_own_time_to_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that goes away shortly before another one's time is over, which came back in time, is waited for too."""
    result, seconds = waited(waiting_in(tmp_path), monkeypatch, {1: (7.0, 99.0), 2: (0.0, 9.0)})

    assert result is not None
    assert (result.code, result.message) == (ExitCode.HOSTS_MISSING, "host 2 missing for 10 s")
    assert seconds == pytest.approx(9.0 + 2.0 + 10.0, abs=1.0), "it polled last after 9 s, and was missed 2 s later"


def test_a_host_that_stays_away_is_told_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One host's time is over, while another is missing for a moment only: the message is about the former."""
    result, seconds = waited(waiting_in(tmp_path), monkeypatch, {2: (0.0, 6.0)})

    assert result is not None
    assert result.message.startswith("host 1 missing for 10 s")
    assert seconds == pytest.approx(10.0, abs=1.0)


@pytest.mark.parametrize(
    ("began_at", "message"),
    [
        (None, "stopped before a trainer ran; there was nothing to save"),
        (1.0, "stopped while no trainer ran; the steps since the last checkpoint are done again"),
    ],
)
def test_a_stop_says_whether_work_is_lost(tmp_path: Path, began_at: float | None, message: str) -> None:
    """Between two attempts of a command, the steps that the last one took since the checkpoint are not saved."""
    state = waiting_in(tmp_path)
    state.note(attempt=4, began_at=began_at)
    state.stop.set()

    result = asyncio.run(hosts_are_there(state))

    assert result is not None
    assert (result.code, result.message) == (ExitCode.SAVED, message)
