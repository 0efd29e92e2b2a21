"""What an agent does that is not the leader's: say that it is there, join the leader's Ray epoch, keep to its word.

Called by `agent.py` on every host but host 0. The trainer is started and ended by requests that come through the hand;
a follower ends it by itself only when the leader says that its incarnation is over, or is another one than before.
"""

import asyncio
from contextlib import suppress
from typing import Any

from shardwise.launcher.client import NoLeaderError, request
from shardwise.launcher.config import AgentConfig
from shardwise.launcher.host import Host
from shardwise.launcher.ray_node import RayNode

_POLL_SECONDS = 0.3


class Follower:
    """One host's bond to the leader."""

    def __init__(self, config: AgentConfig, host: Host) -> None:
        """Nothing is known of a leader."""
        self._config, self._host, self._token = config, host, config.token
        self._leader: str | None = None
        self._epoch, self._address = 0, ""
        self._node: RayNode | None = None

    async def run(self) -> int:
        """Poll until the leader says its last word; that is the exit code of the run."""
        try:
            return await self._follow()
        finally:
            await self._leave_epoch()

    async def _follow(self) -> int:
        while True:
            with suppress(NoLeaderError):  # it is being replaced, or has not started yet
                answer = await asyncio.to_thread(self._poll)
                if answer["done"] is not None:
                    return int(answer["done"])
                await self._heed(answer)
            await asyncio.sleep(_POLL_SECONDS)

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

    def _poll(self) -> dict[str, Any]:
        body = {
            "host": self._config.host,
            "agentId": self._host.agent_id,
            "address": self._config.address,
            "epoch": self._epoch if self._node else None,
        }
        return request(self._config.leader, self._token, "POST", "/gang", body)
