"""What an agent does that is not the leader's: say that it is there, join the leader's Ray epoch, keep to its word.

Called by `agent.py` on every host but host 0. The trainer is started and ended by requests that come through the hand;
a follower ends it by itself only when the leader says that its incarnation is over, or is another one than before.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

from shardwise.launcher.client import Leader, NoLeaderError
from shardwise.launcher.config import AgentConfig
from shardwise.launcher.host import Host
from shardwise.launcher.last_word import LEFT
from shardwise.launcher.members import poll_seconds
from shardwise.launcher.ray_node import RayNode
from shardwise.launcher.record import GangRecord

_LEADERLESS_SECONDS = 10.0  # how long a host that leaves waits for somebody to save the run


class Follower:
    """One host's bond to the leader."""

    def __init__(self, config: AgentConfig, host: Host) -> None:
        """Nothing is known of a leader."""
        self._config, self._host = config, host
        self._asked = Leader(Path(config.directory), config.run, config.tokens.gang)
        self._answered_at = time.monotonic()
        self._leader: str | None = None
        self._epoch, self._address = 0, ""
        self._node: RayNode | None = None

    async def run(self) -> int:
        """Poll until the leader says its last word, or this host may leave; the exit code of the run, or `LEFT`."""
        try:
            return await self._follow()
        finally:
            await self._leave_epoch()

    async def _follow(self) -> int:
        while True:
            leaving = self._host.leaving.is_set()
            answer: dict[str, Any] | None = None
            try:
                answer = await asyncio.to_thread(self._poll, leaving=leaving)
            except NoLeaderError:  # it is being replaced, has not started yet, or has gone after its last word
                code = await asyncio.to_thread(self._said)
                may_go = time.monotonic() - self._answered_at > _LEADERLESS_SECONDS
            else:
                self._answered_at, code, may_go = time.monotonic(), answer["done"], answer["mayGo"]
            if code is not None:
                return int(code)
            if answer and answer["superseded"]:  # the cluster has lost sight of this host, and made another
                return LEFT
            if leaving and may_go:
                return LEFT
            if answer:
                await self._heed(answer)
            await asyncio.sleep(poll_seconds(self._config.num_hosts))

    def _said(self) -> int | None:
        """The leader's last word, from its record."""
        record = GangRecord.read(Path(self._config.directory))
        return record.code if record and record.run == self._config.run else None

    async def _heed(self, answer: dict[str, Any]) -> None:
        if answer["leaderId"] != self._leader:
            if self._leader is not None:
                await self._host.end()
            self._leader = answer["leaderId"]
        await self._host.end_up_to(answer["over"])
        if answer["rayAddress"] != self._address:
            await self._leave_epoch()
            self._epoch, self._address = answer["epoch"], answer["rayAddress"]
            if self._address:
                self._node = await RayNode.join(
                    self._config.place, epoch=answer["epoch"], address=self._address, socket=self._config.socket
                )

    async def _leave_epoch(self) -> None:
        """Nothing of Ray remains on this host."""
        if self._node:
            await self._node.close()
            self._node = None

    def _poll(self, *, leaving: bool) -> dict[str, Any]:
        words = {
            "run": self._config.run,
            "host": self._config.host,
            "agentId": self._host.agent_id,
            "attempt": self._config.attempt,
            "address": self._config.address,
            "leaving": leaving,
            "stuck": self._host.stuck,
            "epoch": self._epoch if self._node else None,
        }
        return self._asked.poll(words)
