"""shardwise.launcher.leader.channel: to which agents it is opened, with a stand-in for Ray, and who gives no answer."""

import asyncio
import errno
import json
import time
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from shardwise.launcher.leader import channel
from shardwise.launcher.leader.events import Events
from shardwise.launcher.leader.members import Members
from shardwise.protocol.contract import EVENTS
from shardwise.protocol.poll import Poll
from shardwise.protocol.requests import ReadStacks, Stacks


class StandInSession:
    """Which hosts have joined is the test's to say; nobody has at first."""

    opened: list["StandInSession"]

    def __init__(self) -> None:
        self.address, self.joined = f"gcs-{len(self.opened)}", asyncio.Event()
        self.close = AsyncMock()

    @classmethod
    async def open(cls, *_: Any, **__: Any) -> "StandInSession":
        """Be the next one."""
        session = cls()
        cls.opened.append(session)
        return session

    async def all_joined(self, _: float) -> None:
        """Wait for the test."""
        await self.joined.wait()

    async def ended(self) -> str:
        """Never be lost."""
        return await _never()

    async def ask(self, *_: Any) -> str:
        """Have no answer."""
        return await _never()


def poll(agent: str) -> Poll:
    """Return what the agent of host 1 says."""
    return Poll(run="run", host=1, agent_id=agent, address="")


async def until(condition: Any) -> None:
    """Wait for it."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  what is waited for knows of no test
            await asyncio.sleep(0.01)


def test_an_agent_that_comes_while_the_way_is_opened_is_not_waited_for_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its predecessor, to whom the way was opened, never joins: it is opened anew at once, which is no failure."""
    StandInSession.opened = []
    monkeypatch.setattr(channel, "RaySession", StandInSession)
    monkeypatch.setattr(channel, "RayNode", Mock(join=AsyncMock(return_value=Mock(close=AsyncMock(), ended=_never))))
    (tmp_path / "logs").mkdir()

    async def lose_agents() -> channel.Channel:
        members = Members(2, "leader")
        way = channel.Channel(Mock(num_hosts=2), members, Events(tmp_path), AsyncMock(), 0)
        members.polled(poll("agent 0"), time.monotonic())
        running = asyncio.create_task(way.run())
        for number in range(1, 7):
            await until(lambda: len(StandInSession.opened) == number and way.address)  # noqa: B023  called in this round
            assert way.agent_ids[1] == f"agent {number - 1}"
            members.polled(poll(f"agent {number}"), time.monotonic())
            way.look()
        await until(lambda: len(StandInSession.opened) == 7)
        StandInSession.opened[-1].joined.set()
        await until(way.ready.is_set)
        running.cancel()
        await asyncio.wait([running])
        return way

    way = asyncio.run(lose_agents())
    assert way.agent_ids[1] == "agent 6"
    told = [json.loads(line)["event"] for line in (tmp_path / "logs" / EVENTS).read_text().splitlines()]
    assert told == [*["sessionLost"] * 6, "session"]


def test_the_leader_s_own_host_may_refuse(tmp_path: Path) -> None:
    """A request that its host cannot serve, as with a full disk, has no answer, as one that another refuses."""
    (tmp_path / "logs").mkdir()
    refuses = AsyncMock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    way = channel.Channel(Mock(num_hosts=1), Members(1, "leader"), Events(tmp_path), refuses, 0)

    assert asyncio.run(way.ask_all(ReadStacks(), Stacks, 5.0)) == {0: None}
    (told,) = map(json.loads, (tmp_path / "logs" / EVENTS).read_text().splitlines())
    assert (told["event"], told["host"]) == ("noAnswer", 0)
    assert "No space left on device" in told["reason"]


async def _never() -> str:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    return await future
