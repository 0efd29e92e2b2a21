"""The agent of any host but host 0: polls the leader, joins its Ray session, and ends with the run.

The trainer is started and ended by requests that come over Ray. A follower ends it by itself only if the leader says
that the trainer's attempt is over, or if there is another leader than before. In a cluster it gives its host back if
nothing is heard of a leader for much longer than one may take to come: then the operator is gone too.
"""

import asyncio
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from shardwise.job.spec.recovery import Recovery
from shardwise.launcher.agent.client import LeaderClient, NoLeaderError, poll_seconds
from shardwise.launcher.agent.config import AgentConfig
from shardwise.launcher.agent.host import Host
from shardwise.launcher.ray.node import RayNode
from shardwise.launcher.system.tasks import cancel
from shardwise.protocol.contract import HOST_LEFT
from shardwise.protocol.errors import LeaderlessError, StorageError
from shardwise.protocol.leader_record import LeaderRecord
from shardwise.protocol.poll import Poll, PollAnswer

if TYPE_CHECKING:  # only pods with a bucket need it, and what it stands on
    from shardwise.launcher.agent.run_copy import RunCopy

_LEADERLESS_SECONDS = 10.0  # how long a host that leaves waits for a leader that saves the run
_PATIENCE = 2.0  # times the time in which the operator, or the leader, gives the hosts back
_LOOK_SECONDS = 2.0  # between two looks into a bucket
_MOST_LOOKS_PER_SECOND = 50.0  # of all hosts together


class Follower:
    """One host's connection to the leader."""

    def __init__(self, config: AgentConfig, recovery: Recovery, host: Host, copy: "RunCopy | None") -> None:
        """Know no leader yet; `copy` is that of a run directory in a bucket."""
        self._config, self._recovery, self._host, self._copy = config, recovery, host, copy
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = 0.0
        self._client = LeaderClient(config.directory, config.run, config.tokens.gang)
        self._answered_at = time.monotonic()
        self._leader_id: str | None = None
        self._address = ""
        self._node: RayNode | None = None

    async def run(self) -> int:
        """Poll until the run has ended, or this host may leave; return the exit code of the run, or `HOST_LEFT`.

        Raises:
            LeaderlessError: nothing was heard of a leader for too long.

        """
        try:
            return await self._follow()
        finally:
            if self._looking:
                await cancel(self._looking)
            await self._leave_session()

    async def _follow(self) -> int:
        while True:
            leaving = self._host.leaving.is_set()
            answer: PollAnswer | None = None
            try:
                answer = await asyncio.to_thread(self._poll, leaving=leaving)
            except NoLeaderError:  # it is being replaced, has not started yet, or has ended with the run
                self._look()
                code = await asyncio.to_thread(LeaderRecord.code_of, self._config.directory, self._config.run)
                silent_seconds = time.monotonic() - self._answered_at
                may_go = silent_seconds > _LEADERLESS_SECONDS
                if code is None:
                    self._give_up_after(silent_seconds)
            else:
                self._answered_at, code, may_go = time.monotonic(), answer.done, answer.may_go
            if code is not None:
                return code
            if answer and answer.superseded:  # the cluster has lost sight of this host, and made another
                return HOST_LEFT
            if leaving and may_go:
                return HOST_LEFT
            if answer:
                await self._take(answer)
            await asyncio.sleep(poll_seconds(self._config.num_hosts))

    def _give_up_after(self, silent_seconds: float) -> None:
        known = self._leader_id is not None
        bound = _PATIENCE * (self._recovery.replace_within if known else self._recovery.start_within).seconds
        if silent_seconds > bound and not self._config.one_machine:  # there the command replaces host 0, or ends
            raise LeaderlessError(
                f"host 0 was not heard for {bound:g} s, so nothing else gives this host back: "
                "is the operator still there?"
            )

    async def _take(self, answer: PollAnswer) -> None:
        if answer.leader_id != self._leader_id:
            # The new leader starts an attempt of its own: it does not know the trainer that runs here.
            if self._leader_id is not None:
                await self._host.end()
            self._leader_id = answer.leader_id
        if answer.over is not None:
            await self._host.end_up_to(answer.over)
        if answer.ray_address != self._address:
            await self._leave_session()
            self._address = answer.ray_address
            if self._address:
                await self._join_session(answer.ray_session)

    def _look(self) -> None:
        """Begin to take from the bucket who leads and how the run has ended, unless that was done a moment ago.

        A bucket that does not answer must not keep this host from the next poll.
        """
        now, wait = time.monotonic(), max(_LOOK_SECONDS, self._config.num_hosts / _MOST_LOOKS_PER_SECOND)
        if self._copy is None or (self._looking and (not self._looking.done() or now - self._looked_at < wait)):
            return
        if self._looking:
            self._looking.result()  # what a person has to mend ends this host
        self._looked_at, self._looking = now, asyncio.create_task(asyncio.to_thread(self._take_leader, self._copy))

    def _take_leader(self, copy: "RunCopy") -> None:
        with suppress(StorageError):  # the next look may find it well again
            copy.take_leader()

    async def _join_session(self, session: int) -> None:
        """Start this host's part of Ray. What refuses that ends no trainer: the next poll tries it again."""
        try:
            self._node = await RayNode.join(
                self._config.place, session=session, address=self._address, socket=self._config.socket
            )
        except OSError as error:
            sys.stderr.write(f"Ray cannot be started: {error}\n")
            self._address = ""

    async def _leave_session(self) -> None:
        """End this host's part of Ray."""
        if self._node:
            await self._node.close()
            self._node = None

    def _poll(self, *, leaving: bool) -> PollAnswer:
        ended = self._host.report().exit
        message = Poll(
            run=self._config.run,
            host=self._config.host,
            agent_id=self._host.agent_id,
            pod_attempt=self._config.pod_attempt,
            address=self._config.address,
            leaving=leaving,
            stuck=self._host.stuck,
            ended=ended and ended.model_copy(update={"log_tail": ""}),
        )
        return self._client.poll(message)
