"""The worker process that a raylet starts on a host, and its actor, which passes requests on to the host's agent."""

import asyncio
import os
from pathlib import Path

from shardwise.launcher.ray import private, rpc
from shardwise.launcher.ray.node import SOCKET_VARIABLE


class AgentProxy:
    """The actor on one host. All of its methods run in one event loop, so that a long request delays no other."""

    def __init__(self) -> None:
        # Referred to from here, because a task and an event that only refer to each other may be garbage-collected.
        self._never = asyncio.Event()

    async def ready(self) -> None:
        """Return as soon as the actor can be asked."""

    async def live(self) -> None:
        """Never return: the caller learns at once, by an error, that the actor or its host is gone."""
        await self._never.wait()

    async def ask(self, request: str, timeout: float) -> str:  # noqa: ASYNC109  sent along
        """Return the agent's answer; TimeoutError, an OSError of its socket or RefusedError if there is none."""
        return await asyncio.wait_for(rpc.ask(Path(os.environ[SOCKET_VARIABLE]), request), timeout)


if __name__ == "__main__":
    private.run_worker()
