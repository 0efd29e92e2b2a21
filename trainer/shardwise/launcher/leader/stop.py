"""The word to stop, from an attempt to its trainers: sent to every host, and again to those that gave no answer."""

import asyncio
import time

from shardwise.launcher.leader.channel import ANSWER_SECONDS, Channel
from shardwise.launcher.ray.rpc import CallError
from shardwise.launcher.system.tasks import cancel
from shardwise.protocol.requests import Done, SignalTrainer

_AGAIN_SECONDS = 1.0


class Stop:
    """The stop of one attempt; `sent_at` is when it was first sent (monotonic seconds), None before."""

    def __init__(self, attempt: int, channel: Channel) -> None:
        """Send nothing yet."""
        self._word, self._channel = SignalTrainer(word="stop", attempt=attempt), channel
        self._telling: list[asyncio.Task[None]] = []
        self.sent_at: float | None = None

    async def send(self) -> None:
        """Tell all hosts; those that do not answer are told again until they do, or until `close`."""
        # Before it is sent, because a host that does not answer must not prolong the others' time to stop.
        self.sent_at = time.monotonic()
        answers = await self._channel.ask_all(self._word, Done, ANSWER_SECONDS)
        self._telling = [asyncio.create_task(self._tell(host)) for host, answer in answers.items() if answer is None]

    async def close(self) -> None:
        """Tell no one any more."""
        await cancel(*self._telling)

    async def _tell(self, host: int) -> None:
        """Tell a host that could not be reached: its program may know of no other that is told."""
        while True:
            await asyncio.sleep(_AGAIN_SECONDS)
            try:
                await self._channel.ask(host, self._word, Done)
            except CallError:
                continue
            return
