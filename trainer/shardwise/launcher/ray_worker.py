"""The worker process that a raylet starts on a host, and the actor that lives in it: the leader's hand there.

The process is Ray's own worker without the set-up step that Ray puts before it, which would import Ray a second time
to prepare an environment that is the host's own anyway. The actor passes requests on to the agent of its host and
knows nothing of them. Started by the raylets of `ray_node.py`; the actor is created by `ray_driver.py`.
"""

import asyncio
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from shardwise.launcher import hand
from shardwise.launcher.ray_node import SOCKET_VARIABLE, ray_file

_FOR_THE_SETUP = ("--language=", "--serialized-runtime-env-context=")


class HandActor:
    """Lives on one host; every method runs in one event loop, so that a long request delays no other."""

    def __init__(self) -> None:
        # Kept here, or a task that waits for it is referred to by nothing and may be collected.
        self._never = asyncio.Event()

    async def ready(self) -> None:
        """Answers as soon as the actor can be asked."""

    async def live(self) -> None:
        """Never answers: who waits for it hears at once that the actor or its host is gone."""
        await self._never.wait()

    async def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:  # noqa: ASYNC109  sent along
        """The agent's answer; an error of the agent's socket, or TimeoutError, where there is none."""
        return await asyncio.wait_for(hand.ask(Path(os.environ[SOCKET_VARIABLE]), request), timeout)


if __name__ == "__main__":
    sys.argv = [argument for argument in sys.argv if not argument.startswith(_FOR_THE_SETUP)]
    runpy.run_path(str(ray_file("_private", "workers", "default_worker.py")), run_name="__main__")
