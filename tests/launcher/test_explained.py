"""shardwise.launcher.incarnation: why it ended, where the way to a host is lost just then, with a stand-in for Ray."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from shardwise.job.contract import Cause, ExitCode
from shardwise.launcher.causes import Ending
from shardwise.launcher.hand import Answer, HandError, Request
from shardwise.launcher.incarnation import Incarnation
from shardwise.launcher.members import Members
from shardwise.launcher.report import Exit
from shardwise.launcher.wire import camel

PEER_GONE = Exit(incarnation=0, code=ExitCode.PEER, signal=None, asked=False, out_of_memory=False, log_tail="")
NO_MEMORY = Exit(incarnation=0, code=None, signal=9, asked=False, out_of_memory=True, log_tail="")
KILLED = Exit(incarnation=0, code=None, signal=9, asked=False, out_of_memory=False, log_tail="")


class StandInReach:
    """The way to host 1, which is lost as often as the test says and then there again."""

    def __init__(self, ended: Exit, times_lost: int) -> None:
        self.agent_ids, self.reports = {0: "own", 1: "one"}, dict[int, Any]()
        self.ready, self.changed = asyncio.Event(), asyncio.Event()
        self.ready.set()
        self._ended, self._lost = ended, times_lost

    async def ask(self, host: int, request: Request, seconds: float) -> Answer:
        """Answer as host 1 does at the end."""
        del request, seconds
        if self._lost:
            self._lost -= 1
            raise HandError(host, "its part of Ray has died")
        return {"agentId": "one", "exit": camel(self._ended)}


def explained(ended: Exit, times_lost: int) -> Ending:
    """Return why an incarnation of two hosts ended, whose rank 0 says only that its peer is gone."""

    async def end() -> Ending:
        members = Members(2, "own")
        word = {"host": 1, "agentId": "one", "attempt": 0, "address": "", "leaving": False, "stuck": ""}
        since = time.monotonic()
        members.polled({**word, "epoch": None}, since + 60.0)
        own: Answer = {"agentId": "own", "exit": camel(PEER_GONE)}

        async def answer(_: Request) -> Answer:
            return own

        means: Any = SimpleNamespace(
            config=SimpleNamespace(num_hosts=2),
            members=members,
            reach=StandInReach(ended, times_lost),
            host=SimpleNamespace(answer=answer),
            events=Mock(),
        )
        incarnation = Incarnation(0, means)
        return await incarnation.explain(since, await incarnation.end())

    return asyncio.run(end())


@pytest.mark.parametrize(
    ("ended", "cause"), [(NO_MEMORY, Cause.OUT_OF_MEMORY), (KILLED, Cause.FAILURE)], ids=["no memory", "killed"]
)
@pytest.mark.parametrize("times_lost", [0, 1, 3])
def test_a_host_that_lives_is_heard_before_its_trainer_s_end_is_explained(
    ended: Exit, cause: Cause, times_lost: int
) -> None:
    """What has ended its trainer may have ended its part of Ray: the link between the hosts is not blamed for it."""
    ending = explained(ended, times_lost)

    assert (ending.cause, ending.rank) == (cause, 1)
