"""shardwise.launcher.leader.attempt: its orders, where the leader's volume fails, and why it ended."""

import asyncio
import errno
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock, patch

import pytest
from tests.launcher.leader.test_members import poll
from tests.launcher.leader.test_state import state_in

from shardwise.launcher.agent.client import poll_seconds
from shardwise.launcher.leader import attempt, decision, stop
from shardwise.launcher.leader.attempt import Attempt
from shardwise.launcher.leader.causes import Ending
from shardwise.launcher.leader.decision import Action
from shardwise.launcher.leader.members import LOST_SECONDS
from shardwise.launcher.leader.metrics_tail import MetricsTail
from shardwise.launcher.ray.rpc import CallError
from shardwise.launcher.system import lines
from shardwise.protocol.contract import Cause, ExitCode
from shardwise.protocol.report import Exit
from shardwise.protocol.requests import Done, Ended, SignalTrainer


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


def test_a_host_that_is_heard_again_was_lost_all_the_same(tmp_path: Path) -> None:
    """Its silence has ended the attempt. It may answer the next moment, as a machine that was moved does."""
    killed = Exit(attempt=0, code=None, signal=signal.SIGKILL, asked=True, out_of_memory=False, log_tail="")
    state = state_in(tmp_path, num_hosts=2)
    state.host = Mock(agent_id="own", stuck="", leaving=asyncio.Event())
    state.members.polled(poll(1, "a"), time.monotonic() - LOST_SECONDS)
    state.channel.agent_ids = {0: "own", 1: "a"}
    answers = {host: Ended(agent_id=agent, exit=killed) for host, agent in state.channel.agent_ids.items()}

    async def lost() -> Ending:
        running = Attempt(0, state)
        with patch.object(state.channel, "ask_all", AsyncMock(return_value=answers)):
            assert await running.run() == Action.END
            return await running.explain(time.monotonic(), await running.end())

    ending = asyncio.run(lost())
    assert (ending.cause, ending.rank, ending.message) == (Cause.HOST_LOST, 1, "host 1 went away")


def test_a_stop_reaches_a_host_that_could_not_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent to that host again until it answers, and to it alone: the other has been told."""
    monkeypatch.setattr(stop, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(decision, "STOP_WITHIN_SECONDS", 600.0)
    ended = Exit(attempt=0, code=ExitCode.SAVED, signal=None, asked=False, out_of_memory=False, log_tail="")
    state = state_in(tmp_path, num_hosts=2)
    state.host = Mock(agent_id="own", stuck="", leaving=asyncio.Event())
    state.members.polled(poll(1, "a"), time.monotonic() + 3600)
    state.channel.agent_ids = {0: "own", 1: "a"}
    state.stop.set()
    sent: list[tuple[int, SignalTrainer]] = []

    async def attempt() -> Action:
        running = Attempt(0, state)

        async def ask(host: int, request: SignalTrainer, answer: type[Done], *_: float) -> Done:
            sent.append((host, request))
            if len(sent) < 4:
                raise CallError(host, "there is no way to it at the moment")
            for rank in range(2):
                running._take_exit(rank, ended)
            return answer()

        async def own(request: SignalTrainer) -> Done:
            sent.append((0, request))
            return Done()

        with patch.object(state.channel, "ask", ask), patch.object(state.channel, "_own", own):
            async with asyncio.timeout(60):
                return await running.run()

    assert asyncio.run(attempt()) == Action.SAVED
    assert sent == [(host, SignalTrainer(word="stop", attempt=0)) for host in (0, 1, 1, 1)]


def test_each_host_of_a_big_run_has_a_poll_to_show_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Ray no host answers, and each of 2,000 polls only every five seconds: none of them is lost for that."""
    num_hosts, since = 2000, 1000.0
    refused = Exit(attempt=0, code=ExitCode.BAD_INPUT, signal=None, asked=False, out_of_memory=False, log_tail="")
    killed = Exit(attempt=0, code=None, signal=signal.SIGKILL, asked=True, out_of_memory=False, log_tail="")
    state = state_in(tmp_path, num_hosts=num_hosts)
    state.host = Mock(agent_id="own", report=Mock(return_value=Mock(attempt=0, progress=None)))
    state.channel.agent_ids = {0: "own"} | dict.fromkeys(range(1, num_hosts), "a")
    clock, silent_since = since, state.members.silent_since

    def heard(moment: float) -> list[int]:
        """Have time go by, and each host poll whenever its next one is due."""
        nonlocal clock
        clock += 0.25
        for host in range(1, num_hosts):
            polled_at = since + poll_seconds(num_hosts) * host / num_hosts
            if polled_at <= clock:
                ended = refused if host == 5 else killed
                state.members.polled(poll(host, "a").model_copy(update={"ended": ended}), polled_at)
        return silent_since(moment)

    monkeypatch.setattr(attempt, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(attempt, "time", SimpleNamespace(monotonic=lambda: clock))
    monkeypatch.setattr(state.members, "silent_since", heard)
    running = Attempt(0, state)
    running._take_exit(0, killed)

    ending = asyncio.run(running.explain(since, dict.fromkeys(range(num_hosts))))

    assert (ending.cause, ending.rank) == (Cause.BAD_INPUT, 5)
