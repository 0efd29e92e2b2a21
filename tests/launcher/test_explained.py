"""shardwise.launcher.leader.attempt: why it ended, where the way to a host is lost just then."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from shardwise.launcher.leader.attempt import Attempt
from shardwise.launcher.leader.causes import Ending
from shardwise.launcher.leader.channel import Channel
from shardwise.launcher.leader.members import Members
from shardwise.launcher.ray.rpc import CallError
from shardwise.protocol.contract import Cause, ExitCode
from shardwise.protocol.poll import Poll
from shardwise.protocol.report import Exit
from shardwise.protocol.requests import Ended, Request

PEER_GONE = Exit(attempt=0, code=ExitCode.PEER, signal=None, asked=False, out_of_memory=False, log_tail="")
NO_MEMORY = Exit(attempt=0, code=None, signal=9, asked=False, out_of_memory=True, log_tail="")
KILLED = Exit(attempt=0, code=None, signal=9, asked=False, out_of_memory=False, log_tail="")


class StandInChannel(Channel):
    """Host 1's part of Ray dies so many times before it answers."""

    def __init__(self, members: Members, own: Ended, ended: Exit, times_lost: int) -> None:
        async def answer(_: Request) -> Ended:
            return own

        config: Any = SimpleNamespace(num_hosts=2)
        super().__init__(config, members, Mock(), answer, 0)
        self.ready.set()
        self.agent_ids = {0: "own", 1: "one"}
        self._exit, self._times = ended, times_lost

    async def ask(self, host: int, request: Request, answer: type[Any], seconds: float = 0.0) -> Any:
        """Answer as host 1 does at the end."""
        del request, answer, seconds
        if self._times:
            self._times -= 1
            raise CallError(host, "its part of Ray has died")
        return Ended(agent_id="one", exit=self._exit)


def explained(ended: Exit, times_lost: int, polled: Exit | None = None) -> Ending:
    """Return why an attempt of two hosts ended, whose rank 0 says only that its peer is gone."""

    async def end() -> Ending:
        members = Members(2, "own")
        since = time.monotonic()
        members.polled(Poll(run="run", host=1, agent_id="one", address="", ended=polled), since + 60.0)
        own = Ended(agent_id="own", exit=PEER_GONE)
        context: Any = SimpleNamespace(
            config=SimpleNamespace(num_hosts=2),
            job=SimpleNamespace(spec=SimpleNamespace(program=None)),
            members=members,
            host=SimpleNamespace(report=lambda: SimpleNamespace(attempt=None)),  # its trainer has no orders
            channel=StandInChannel(members, own, ended, times_lost),
            events=Mock(),
        )
        attempt = Attempt(0, context)
        return await attempt.explain(since, await attempt.end())

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


def test_a_poll_says_how_a_trainer_ended_where_ray_does_not_come_back() -> None:
    """Memory that is taken for minutes keeps Ray away for as long; the host's agent polls, and is believed."""
    ending = explained(NO_MEMORY, 1_000_000, polled=NO_MEMORY)

    assert (ending.cause, ending.rank) == (Cause.OUT_OF_MEMORY, 1)
